# Writes what the program says of itself where man(1) and shells look for it: manual pages and
# completion scripts below ${share}. `program` runs where it is built.
execute_process(COMMAND "${program}" manual OUTPUT_VARIABLE pages COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${pages}" pages)
string(REPLACE "\n" ";" pages "${pages}")
foreach(page ${pages})
  set(section 1)
  if(page STREQUAL "tessera-run")
    set(section 5)
  endif()
  file(MAKE_DIRECTORY "${share}/man/man${section}")
  execute_process(COMMAND "${program}" manual ${page}
                  OUTPUT_FILE "${share}/man/man${section}/${page}.${section}"
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(script bash:bash-completion/completions/tessera zsh:zsh/site-functions/_tessera
        fish:fish/vendor_completions.d/tessera.fish)
  string(REPLACE ":" ";" script "${script}")
  list(GET script 0 shell)
  list(GET script 1 path)
  cmake_path(GET path PARENT_PATH folder)
  file(MAKE_DIRECTORY "${share}/${folder}")
  execute_process(COMMAND "${program}" completion ${shell} OUTPUT_FILE "${share}/${path}"
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
