# ./x bundle: a tree for a machine of the same architecture that has none of the libraries that
# Tessera is built against, with those in it, as the components of an install. What stays outside is
# the C library, which must not be older than the one here, and what NVIDIA ships with its driver and
# its toolkit.
#
# libstdc++ and libgomp travel too: a machine's own may be missing or older than our symbols, and
# NVIDIA's libraries ask for none that are newer than GCC 5's. So does the CUDA runtime, of which both
# plugins use one copy.
#
# Debian's libraries have no rpath by which they would find each other in a folder. So programs have
# an RPATH, which holds for all that they load, where a RUNPATH would for their own needs alone.
set(bundle_outside "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so"
                   "^lib(cuda|cublas|cublasLt|cupti|nccl|cudnn.*|nvidia-.*)\\.so")
set(of_bundle COMPONENT bundle EXCLUDE_FROM_ALL)

set(bundle_targets tessera tessera_command)
foreach(target tessera_cuda tessera_nccl)
  if(TARGET ${target})
    list(APPEND bundle_targets ${target})
  endif()
endforeach()
install(
  TARGETS ${bundle_targets}
  RUNTIME_DEPENDENCY_SET bundle
  RUNTIME ${of_bundle}
  LIBRARY ${of_bundle} NAMELINK_SKIP DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(RUNTIME_DEPENDENCY_SET bundle PRE_EXCLUDE_REGEXES ${bundle_outside}
        LIBRARY ${of_bundle} DESTINATION "${CMAKE_INSTALL_LIBDIR}")

# What is run first on a machine with a GPU. These programs need no library that the tree has not.
add_custom_target(bundle_programs)
add_dependencies(bundle_programs tessera_command)
foreach(program tests/cuda_test tests/nccl_test bench/gpu_core_bench bench/gpu_train_bench)
  get_filename_component(target ${program} NAME)
  get_filename_component(folder ${program} DIRECTORY)
  if(TARGET ${target})
    add_dependencies(bundle_programs ${target})
    file(RELATIVE_PATH to_lib "${CMAKE_INSTALL_PREFIX}/${folder}" "${CMAKE_INSTALL_FULL_LIBDIR}")
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib}")
    if(folder STREQUAL "tests")  # without headers that are compiled as other tests are
      set_target_properties(${target} PROPERTIES TESSERA_SMALL ON DISABLE_PRECOMPILE_HEADERS ON)
    endif()
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
    install(TARGETS ${target} RUNTIME COMPONENT bundle_${folder} EXCLUDE_FROM_ALL OPTIONAL
                                      DESTINATION "${folder}")
  endif()
endforeach()
