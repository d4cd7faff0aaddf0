# Every third-party library that Tessera builds against, in one place. All that are missing are
# named at once, with their Debian packages (which ./x installs from packages.txt).

set(tessera_missing "")

# tessera_need(VARIABLE WHAT PACKAGE): remembers WHAT as missing unless VARIABLE is true.
macro(tessera_need found what package)
  if(NOT ${found})
    list(APPEND tessera_missing "  ${what} (Debian package ${package})")
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(OpenMP QUIET COMPONENTS CXX)
tessera_need(OpenMP_CXX_FOUND "OpenMP for C++" g++)
find_package(fmt QUIET)
tessera_need(fmt_FOUND fmt libfmt-dev)
find_package(spdlog QUIET)
tessera_need(spdlog_FOUND spdlog libspdlog-dev)
find_package(CLI11 QUIET)
tessera_need(CLI11_FOUND CLI11 libcli11-dev)
find_package(nlohmann_json QUIET)
tessera_need(nlohmann_json_FOUND nlohmann-json nlohmann-json3-dev)
find_package(tomlplusplus QUIET)
tessera_need(tomlplusplus_FOUND toml++ libtomlplusplus-dev)

# Debian's dnnl-config.cmake asks for OpenCL headers, which the CPU engine does not need.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
  set(dnnl_FOUND TRUE)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION "${DNNL_LIBRARY}"
                                              INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}")
endif()
tessera_need(dnnl_FOUND oneDNN libdnnl-dev)

find_package(PkgConfig QUIET)
tessera_need(PKG_CONFIG_FOUND pkg-config pkg-config)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(hwy QUIET IMPORTED_TARGET libhwy)
  tessera_need(hwy_FOUND Highway libhwy-dev)
  pkg_check_modules(hwloc QUIET IMPORTED_TARGET hwloc)
  tessera_need(hwloc_FOUND hwloc libhwloc-dev)
  pkg_check_modules(pcre2 QUIET IMPORTED_TARGET libpcre2-8)
  tessera_need(pcre2_FOUND PCRE2 libpcre2-dev)
  pkg_check_modules(sentencepiece QUIET IMPORTED_TARGET sentencepiece)
  tessera_need(sentencepiece_FOUND SentencePiece libsentencepiece-dev)
  pkg_check_modules(uring QUIET IMPORTED_TARGET liburing)
  tessera_need(uring_FOUND liburing liburing-dev)
  pkg_check_modules(utf8proc QUIET IMPORTED_TARGET libutf8proc)
  tessera_need(utf8proc_FOUND utf8proc libutf8proc-dev)
  pkg_check_modules(xxhash QUIET IMPORTED_TARGET libxxhash)
  tessera_need(xxhash_FOUND xxHash libxxhash-dev)
  pkg_check_modules(zlib QUIET IMPORTED_TARGET zlib)
  tessera_need(zlib_FOUND zlib zlib1g-dev)
  pkg_check_modules(zstd QUIET IMPORTED_TARGET libzstd)
  tessera_need(zstd_FOUND zstd libzstd-dev)
endif()

if(tessera_missing)
  list(JOIN tessera_missing "\n" tessera_missing)
  message(FATAL_ERROR "Tessera needs these, and CMake did not find them:\n${tessera_missing}\n"
                      "Install them, or name their place in CMAKE_PREFIX_PATH or PKG_CONFIG_PATH.")
endif()

# MPI libraries, each of which makes a plugin for runs across machines: without them the program
# still builds and trains, on one.
foreach(mpi "openmpi;ompi-c;Open MPI;libopenmpi-dev" "mpich;mpich;MPICH;libmpich-dev")
  list(GET mpi 0 name)
  list(GET mpi 1 module)
  list(GET mpi 2 title)
  list(GET mpi 3 package)
  pkg_check_modules(${name} QUIET IMPORTED_TARGET ${module})
  if(NOT ${name}_FOUND)
    message(STATUS "No ${title} (Debian package ${package}): libtessera_${name}.so is left out")
  endif()
endforeach()

# NVIDIA's compiler and libraries make the plugin for GPUs: without them the program still builds and
# trains, on CPUs. Sanitizers see nothing of a device's code.
set(TESSERA_CUDA_ARCHITECTURE 90 CACHE STRING "The GPU architecture that kernels are compiled for, as in sm_90")
if(NOT TESSERA_SANITIZE)
  find_package(CUDAToolkit 13 QUIET)
  find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cublasLt AND CUDNN_INCLUDE_DIR)
    set(TESSERA_CUDA ON)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
    set(CMAKE_CUDA_ARCHITECTURES "${TESSERA_CUDA_ARCHITECTURE}-real")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
    enable_language(CUDA)
    # Without -O3, which is for the host's code alone: that starts kernels, and is to be small
    # (TesseraModule.cmake).
    set(CMAKE_CUDA_FLAGS_RELEASE "-DNDEBUG")
    # The plugin loads the library itself where the machine has it.
    add_library(CUDNN::headers INTERFACE IMPORTED)
    target_include_directories(CUDNN::headers INTERFACE "${CUDNN_INCLUDE_DIR}")
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
    if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
      add_library(NCCL::nccl UNKNOWN IMPORTED)
      set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
    else()
      message(STATUS "No NCCL (nccl.h, libnccl.so): libtessera_nccl.so is left out")
    endif()
  else()
    message(STATUS "No CUDA toolkit 13 with nvcc and cuBLASLt, or no cuDNN 9 (cudnn_graph.h): libtessera_cuda.so is left out")
  endif()
endif()

# What only tests and benchmarks need: without it their targets say so; the program still builds.
if(TESSERA_TESTS)
  find_package(GTest QUIET)
endif()
if(TESSERA_BENCH)
  find_package(benchmark QUIET)
endif()
