# Installs what the program says of itself where man(1) and shells look for it: manual pages and
# completion scripts, below ${share}, made first in ${made}. `program` runs where it is built.
file(REMOVE_RECURSE "${made}")
execute_process(COMMAND "${program}" manual OUTPUT_VARIABLE pages COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${pages}" pages)
string(REPLACE "\n" ";" pages "${pages}")
foreach(page ${pages})
  set(section 1)
  if(page STREQUAL "tessera-run")
    set(section 5)
  endif()
  file(MAKE_DIRECTORY "${made}/man/man${section}")
  execute_process(COMMAND "${program}" manual ${page}
                  OUTPUT_FILE "${made}/man/man${section}/${page}.${section}"
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(script bash:bash-completion/completions/tessera zsh:zsh/site-functions/_tessera
        fish:fish/vendor_completions.d/tessera.fish)
  string(REPLACE ":" ";" script "${script}")
  list(GET script 0 shell)
  list(GET script 1 path)
  cmake_path(GET path PARENT_PATH folder)
  file(MAKE_DIRECTORY "${made}/${folder}")
  execute_process(COMMAND "${program}" completion ${shell} OUTPUT_FILE "${made}/${path}"
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
# As install() does: with DESTDIR, the manifest, and modes that all may read.
file(INSTALL "${made}/" DESTINATION "${share}"
     FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ
     DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                           WORLD_EXECUTE)
