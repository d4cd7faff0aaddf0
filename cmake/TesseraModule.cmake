# One way to declare a module, so that every target gets the same warnings, floating-point rules and
# sanitizers.

# Flags of all our own code. Contraction is off so that a sum is the same whatever the instruction
# set: where a fused multiply-add is wanted, the code says so.
add_library(tessera_flags INTERFACE)
target_compile_features(tessera_flags INTERFACE cxx_std_20)
target_compile_options(
  tessera_flags
  INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wswitch-enum -Werror
            -ffp-contract=off -fno-math-errno)
# Errors that name a place in the code say the same on every machine. Debug information keeps whole
# paths, so that debuggers find the sources.
target_compile_options(tessera_flags INTERFACE "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside its own headers at -O2 (PR105329, PR105562); clang-tidy covers them.
  target_compile_options(tessera_flags INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
  # Of types that a .cc file has for itself, where another includes it.
  if(TESSERA_UNITY)
    target_compile_options(tessera_flags INTERFACE -Wno-subobject-linkage)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # std::stable_sort of GCC 12's library calls what that library deprecates.
  target_compile_options(tessera_flags INTERFACE -Wno-deprecated-declarations)
  # A name that another .cc file has for itself may be a local one here.
  if(TESSERA_UNITY)
    target_compile_options(tessera_flags INTERFACE -Wno-shadow)
  endif()
endif()
target_include_directories(tessera_flags INTERFACE "${PROJECT_SOURCE_DIR}/src")
# Those of what nvcc compiles. Fmt 9 checks texts at compile time in a way that it cannot follow, and
# CMake 3.25 does not know which standards nvcc 13 has.
add_library(tessera_nvcc_flags INTERFACE)
target_compile_features(tessera_nvcc_flags INTERFACE cxx_std_20)
target_compile_definitions(tessera_nvcc_flags INTERFACE FMT_CONSTEVAL= FMT_USE_CONSTEXPR=1)
target_compile_options(
  tessera_nvcc_flags
  INTERFACE --std=c++20 --expt-relaxed-constexpr --fmad=false --compress-mode=size -Werror all-warnings
            "$<$<CONFIG:Release>:-Xcompiler=-Os>"
            "-Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off,-fopenmp"
            "-Xcompiler=-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
target_include_directories(tessera_nvcc_flags INTERFACE "${PROJECT_SOURCE_DIR}/src")
# Half the time of tests would go into optimizing what runs once: so the targets with TESSERA_TEST
# have options of their own; those with TESSERA_SMALL, which travel, are compiled for size.
set(is_test $<BOOL:$<TARGET_PROPERTY:TESSERA_TEST>>)
if(TESSERA_SANITIZE)
  target_compile_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE}
                                                 -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
  # These take two fifths of a build. The address sanitizer sees accesses through null pointers and
  # out of bounds by itself; places of files' bytes in memory are the fuzzers' subject, which check
  # alignment and what pointers are added up to.
  if(TESSERA_SANITIZE MATCHES "address" AND NOT TESSERA_FUZZ)
    target_compile_options(tessera_flags INTERFACE -fno-sanitize=null,alignment,pointer-overflow)
  endif()
else()
  set(is_small $<BOOL:$<TARGET_PROPERTY:TESSERA_SMALL>>)
  target_compile_options(tessera_flags
                         INTERFACE $<$<AND:$<CONFIG:Release>,${is_test}>:$<IF:${is_small},-Os,-O1>>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND TESSERA_PRECOMPILE)
  # GCC 12 reports these inside its own headers where it takes them from a compiled one, as every
  # target here does. Without compiled headers (TESSERA_PRECOMPILE=OFF) they are on.
  target_compile_options(
    tessera_flags INTERFACE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()

# What is run once is compiled for size. Sanitizers want what all others have.
set(small "")
if(NOT TESSERA_SANITIZE)
  set(small $<$<CONFIG:Release>:-Os>)
endif()

# Other people's headers that most files include, compiled once. Nothing may rely on them: the lint
# preset compiles without.
set(common_headers
    <algorithm>
    <array>
    <cmath>
    <cstdint>
    <filesystem>
    <functional>
    <map>
    <memory>
    <optional>
    <set>
    <span>
    <string>
    <string_view>
    <utility>
    <variant>
    <vector>
    <fmt/core.h>)
# Those of modules that are compiled for size need a compiled header of the same options.
if(TESSERA_PRECOMPILE)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/common_headers.cc" CONTENT "")
  foreach(headers tessera_headers tessera_small_headers)
    add_library(${headers} OBJECT "${PROJECT_BINARY_DIR}/common_headers.cc")
    set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${headers} PRIVATE tessera_flags fmt::fmt OpenMP::OpenMP_CXX)
    target_precompile_headers(${headers} PRIVATE ${common_headers})
  endforeach()
  target_compile_options(tessera_small_headers PRIVATE ${small})
endif()

# Compiles sources in batches of so many (TESSERA_UNITY), except those of `ALONE` and those that
# Highway compiles once for each instruction set, which include themselves.
function(tessera_compile_in_batches target size)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;ALONE")
  if(NOT TESSERA_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  foreach(source ${arg_SOURCES})
    file(STRINGS "${source}" vectorized REGEX "#include.*/foreach_target-inl.h" LIMIT_COUNT 1)
    if(vectorized)
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

# tessera_module(NAME [SMALL] SOURCES file... [ALONE file...] [TESTS file...] [LIBRARIES target...]
#                [TEST_LIBRARIES target...] [LABEL label] [PRECOMPILE header...]
#                [UNSANITIZED pattern...])
#
# SOURCES become part of libtessera; LIBRARIES are what their .cc files include. ALONE are those of
# them, and of TESTS, whose own names others have, too. TESTS become one GoogleTest program, NAME_test, registered
# with CTest under LABEL (default: unit), which links TEST_LIBRARIES too; UNSANITIZED is as in
# tessera_test(). PRECOMPILE: what most SOURCES include and take long over. SMALL: they run once and
# are compiled for size.
function(tessera_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SMALL" "LABEL"
                        "SOURCES;ALONE;TESTS;LIBRARIES;TEST_LIBRARIES;PRECOMPILE;UNSANITIZED")
  if(arg_SOURCES)
    add_library(tessera_${name} OBJECT ${arg_SOURCES})
    tessera_compile_in_batches(tessera_${name} 16 SOURCES ${arg_SOURCES} ALONE ${arg_ALONE})
    set_target_properties(tessera_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(tessera_${name} PRIVATE tessera_flags fmt::fmt OpenMP::OpenMP_CXX
                                                  ${arg_LIBRARIES})
    set(headers tessera_headers)
    if(arg_SMALL)
      target_compile_options(tessera_${name} PRIVATE ${small})
      set(headers tessera_small_headers)
    endif()
    if(TESSERA_PRECOMPILE AND arg_PRECOMPILE)
      target_precompile_headers(tessera_${name} PRIVATE ${common_headers} ${arg_PRECOMPILE})
    elseif(TESSERA_PRECOMPILE)
      target_precompile_headers(tessera_${name} REUSE_FROM ${headers})
    endif()
    set_property(GLOBAL APPEND PROPERTY TESSERA_MODULES tessera_${name})
    set_property(GLOBAL APPEND PROPERTY TESSERA_LIBRARIES ${arg_LIBRARIES})
  endif()
  if(arg_TESTS)
    tessera_test(${name}_test SOURCES ${arg_TESTS} ALONE ${arg_ALONE} LABEL ${arg_LABEL}
                 LIBRARIES ${arg_LIBRARIES} ${arg_TEST_LIBRARIES}
                 UNSANITIZED ${arg_UNSANITIZED})
  endif()
endfunction()

# Programs that only developers run are built on demand, so that a plain build is the product alone.
# Without the library that they need, their target fails and says so.
function(tessera_group target available library)
  if(available)
    add_custom_target(${target})
  else()
    add_custom_target(
      ${target}
      COMMAND ${CMAKE_COMMAND} -E echo "The target ${target} needs ${library}, not found here"
      COMMAND ${CMAKE_COMMAND} -E false
      VERBATIM)
  endif()
endfunction()

if(TESSERA_TESTS AND NOT TESSERA_TEST_PROGRAMS)
  tessera_group(tests "${GTest_FOUND}" "GoogleTest and GoogleMock")
endif()
if(TESSERA_BENCH)
  tessera_group(benchmarks "${benchmark_FOUND}" "Google Benchmark")
endif()

# The same for tests.
if(TESSERA_TESTS AND GTest_FOUND AND TESSERA_PRECOMPILE AND NOT TESSERA_TEST_PROGRAMS)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test_headers.cc" CONTENT "")
  add_library(tessera_test_headers OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/test_headers.cc")
  target_link_libraries(tessera_test_headers PRIVATE tessera_flags GTest::gtest GTest::gmock fmt::fmt
                                                     nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX)
  set_target_properties(tessera_test_headers PROPERTIES TESSERA_TEST ON)
  target_precompile_headers(
    tessera_test_headers PRIVATE ${common_headers} <gmock/gmock.h> <gtest/gtest.h>
                                 <nlohmann/json.hpp>)
endif()

# tessera_compile_as_test(TARGET): the TARGET, which only tests run or link, is compiled as they are.
function(tessera_compile_as_test target)
  set_target_properties(${target} PROPERTIES TESSERA_TEST ON)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE tessera_flags fmt::fmt OpenMP::OpenMP_CXX)
  if(TARGET tessera_test_headers)
    target_precompile_headers(${target} REUSE_FROM tessera_test_headers)
    # Those of the compiled header, without which GCC does not take it.
    target_compile_definitions(
      ${target} PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_DEFINITIONS>)
    target_compile_options(
      ${target} PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_OPTIONS>)
  endif()
endfunction()

# What runs another build's programs of tests on this one's library, under the sanitizer's runtime.
if(TESSERA_TEST_PROGRAMS)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libasan.so
                  OUTPUT_VARIABLE sanitizer_runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS "${sanitizer_runtime}" OR NOT TESSERA_SANITIZE MATCHES "address")
    message(FATAL_ERROR "TESSERA_TEST_PROGRAMS is for GCC and -DTESSERA_SANITIZE=address, whose "
                        "runtime libasan.so was not found")
  endif()
  set(library_environment "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}" "LD_PRELOAD=${sanitizer_runtime}")
endif()

# tessera_register_test(NAME PROGRAM [SIDE_BY_SIDE number] ARGUMENT...): a program of the build
# folder's tests/ as the test NAME, side by side as tessera_test() has it; with
# TESSERA_TEST_PROGRAMS that of another build.
function(tessera_register_test name program)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "SIDE_BY_SIDE" "")
  set(command "$<TARGET_FILE:${program}>")
  if(TESSERA_TEST_PROGRAMS)
    set(command "${TESSERA_TEST_PROGRAMS}/tests/${program}")
  endif()
  if(arg_SIDE_BY_SIDE)
    list(PREPEND command "${PROJECT_SOURCE_DIR}/tests/cli/side_by_side.sh" ${arg_SIDE_BY_SIDE})
  endif()
  add_test(NAME ${name} COMMAND ${command} ${arg_UNPARSED_ARGUMENTS})
  if(TESSERA_TEST_PROGRAMS)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${library_environment}")
  endif()
  if(TESSERA_SANITIZE)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT TESSERA_SANITIZED=1)
  endif()
endfunction()

# That it is this build's library that is watched: the loader says what it found.
if(TESSERA_TEST_PROGRAMS AND TESSERA_TESTS)
  add_test(NAME watched_library_test COMMAND "${TESSERA_TEST_PROGRAMS}/tests/base_test")
  set_tests_properties(
    watched_library_test
    PROPERTIES LABELS unit ENVIRONMENT "${library_environment};LD_TRACE_LOADED_OBJECTS=1"
               PASS_REGULAR_EXPRESSION "libtessera.so.[0-9]+ => ${PROJECT_BINARY_DIR}/")
endif()

# tessera_test(NAME SOURCES file... [ALONE file...] [LIBRARIES target...] [LABEL label]
#              [UNSANITIZED pattern...] [SHARDS number] [SIDE_BY_SIDE number] [STARTS_PROGRAMS])
#
# ALONE are those of SOURCES whose own names others have, too. UNSANITIZED are patterns of GoogleTest
# for cases that sanitizers would run for minutes and learn nothing from that they do not see in
# others. SHARDS cuts what takes minutes into as many tests,
# NAME_0 and so on, which run side by side and before others; SIDE_BY_SIDE makes one test of what
# waits most of the time, which runs as many cases at a time, and nothing else beside them.
# STARTS_PROGRAMS: what it looks at is `tessera`, which it starts; of other builds' tests that alone
# is then this build's.
function(tessera_test name)
  if(NOT TESSERA_TESTS OR NOT GTest_FOUND)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "STARTS_PROGRAMS" "LABEL;SHARDS;SIDE_BY_SIDE"
                        "SOURCES;ALONE;LIBRARIES;UNSANITIZED")
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  set(tests ${name})
  if(arg_SHARDS)
    math(EXPR last "${arg_SHARDS} - 1")
    set(tests "")
    foreach(shard RANGE ${last})
      list(APPEND tests ${name}_${shard})
    endforeach()
  endif()
  list(JOIN arg_UNSANITIZED ":" unsanitized)
  foreach(test ${tests})
    tessera_register_test(${test} ${name} SIDE_BY_SIDE "${arg_SIDE_BY_SIDE}")
    if(arg_SIDE_BY_SIDE)
      set_tests_properties(${test} PROPERTIES RUN_SERIAL TRUE)
    endif()
    set_tests_properties(${test} PROPERTIES LABELS ${arg_LABEL} TIMEOUT 1200)
    if(TESSERA_TEST_PROGRAMS AND arg_STARTS_PROGRAMS)
      set_tests_properties(${test} PROPERTIES ENVIRONMENT "TESSERA_PROGRAMS=${PROJECT_BINARY_DIR}")
    endif()
    if(TESSERA_SANITIZE AND unsanitized)
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${unsanitized}")
    endif()
    if(arg_SHARDS)
      list(FIND tests ${test} shard)
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS}"
                                                            "GTEST_SHARD_INDEX=${shard}")
      set_tests_properties(${test} PROPERTIES COST 1000)
    endif()
  endforeach()
  if(TESSERA_TEST_PROGRAMS)
    return()
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
  add_dependencies(tests ${name})
  tessera_compile_as_test(${name})
  tessera_compile_in_batches(${name} 8 SOURCES ${arg_SOURCES} ALONE ${arg_ALONE})
  target_link_libraries(${name} PRIVATE tessera GTest::gtest GTest::gtest_main GTest::gmock
                                        ${arg_LIBRARIES})
  # Where the library is may be said by LD_LIBRARY_PATH.
  target_link_options(${name} PRIVATE -Wl,--enable-new-dtags)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TESSERA_BINARY_DIR="${PROJECT_BINARY_DIR}")
endfunction()

# tessera_benchmark(NAME SOURCES file... [LIBRARIES target...]): the Google Benchmark program
# bench/NAME of the build folder.
function(tessera_benchmark name)
  if(NOT TESSERA_BENCH OR NOT benchmark_FOUND)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
  add_dependencies(benchmarks ${name})
  target_link_libraries(${name} PRIVATE tessera_flags tessera benchmark::benchmark fmt::fmt
                                        ${arg_LIBRARIES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
  target_compile_definitions(${name} PRIVATE TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TESSERA_BINARY_DIR="${PROJECT_BINARY_DIR}")
endfunction()
