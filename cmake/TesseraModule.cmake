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
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # std::stable_sort of GCC 12's library calls what that library deprecates.
  target_compile_options(tessera_flags INTERFACE -Wno-deprecated-declarations)
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
            "-Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off,-fopenmp"
            "-Xcompiler=-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
target_include_directories(tessera_nvcc_flags INTERFACE "${PROJECT_SOURCE_DIR}/src")
# Half the time of tests would go into optimizing what runs once and, under sanitizers, into watching
# them instead of the library: so the targets with TESSERA_TEST have options of their own.
set(is_test $<BOOL:$<TARGET_PROPERTY:TESSERA_TEST>>)
if(TESSERA_SANITIZE)
  string(REGEX REPLACE ",undefined" "" test_sanitize "${TESSERA_SANITIZE}")
  target_compile_options(
    tessera_flags INTERFACE $<${is_test}:-O0;-fsanitize=${test_sanitize}>
                            $<$<NOT:${is_test}>:-fsanitize=${TESSERA_SANITIZE}>
                            -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
else()
  target_compile_options(tessera_flags INTERFACE $<$<AND:$<CONFIG:Release>,${is_test}>:-O1>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # As above, where it takes the library's headers from a compiled one.
  target_compile_options(
    tessera_flags
    INTERFACE $<${is_test}:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
endif()

# tessera_module(NAME SOURCES file... [TESTS file...] [LIBRARIES target...]
#                [TEST_LIBRARIES target...] [LABEL label])
#
# SOURCES become part of libtessera; LIBRARIES are what their .cc files include. TESTS become one
# GoogleTest program, NAME_test, registered with CTest under LABEL (default: unit), which links
# TEST_LIBRARIES too.
function(tessera_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL" "SOURCES;TESTS;LIBRARIES;TEST_LIBRARIES")
  if(arg_SOURCES)
    add_library(tessera_${name} OBJECT ${arg_SOURCES})
    set_target_properties(tessera_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(tessera_${name} PRIVATE tessera_flags fmt::fmt ${arg_LIBRARIES})
    set_property(GLOBAL APPEND PROPERTY TESSERA_MODULES tessera_${name})
    set_property(GLOBAL APPEND PROPERTY TESSERA_LIBRARIES ${arg_LIBRARIES})
  endif()
  if(arg_TESTS)
    tessera_test(${name}_test SOURCES ${arg_TESTS} LABEL ${arg_LABEL}
                 LIBRARIES ${arg_LIBRARIES} ${arg_TEST_LIBRARIES})
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

if(TESSERA_TESTS)
  tessera_group(tests "${GTest_FOUND}" "GoogleTest and GoogleMock")
endif()
if(TESSERA_BENCH)
  tessera_group(benchmarks "${benchmark_FOUND}" "Google Benchmark")
endif()

# Other people's headers that most tests include, compiled once. Nothing may rely on them: the lint
# preset compiles without.
if(TESSERA_TESTS AND GTest_FOUND AND TESSERA_PRECOMPILE)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test_headers.cc" CONTENT "")
  add_library(tessera_test_headers OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/test_headers.cc")
  target_link_libraries(tessera_test_headers PRIVATE tessera_flags GTest::gtest GTest::gmock fmt::fmt
                                                     nlohmann_json::nlohmann_json)
  set_target_properties(tessera_test_headers PROPERTIES TESSERA_TEST ON)
  target_precompile_headers(
    tessera_test_headers
    PRIVATE
    <algorithm>
    <array>
    <cmath>
    <filesystem>
    <functional>
    <map>
    <memory>
    <string>
    <vector>
    <fmt/core.h>
    <gmock/gmock.h>
    <gtest/gtest.h>
    <nlohmann/json.hpp>)
endif()

# tessera_test(NAME SOURCES file... [LIBRARIES target...] [LABEL label] [UNSANITIZED pattern...])
#
# UNSANITIZED are patterns of GoogleTest for cases that sanitizers would run for minutes and learn
# nothing from that they do not see in others.
function(tessera_test name)
  if(NOT TESSERA_TESTS OR NOT GTest_FOUND)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL" "SOURCES;LIBRARIES;UNSANITIZED")
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
  add_dependencies(tests ${name})
  if(TARGET tessera_test_headers AND NOT "OpenMP::OpenMP_CXX" IN_LIST arg_LIBRARIES)
    target_precompile_headers(${name} REUSE_FROM tessera_test_headers)
  endif()
  target_link_libraries(${name} PRIVATE tessera_flags tessera GTest::gtest GTest::gtest_main
                                        GTest::gmock fmt::fmt ${arg_LIBRARIES})
  set_target_properties(${name} PROPERTIES TESSERA_TEST ON RUNTIME_OUTPUT_DIRECTORY
                                                           "${PROJECT_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TESSERA_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT 1200)
  if(TESSERA_SANITIZE AND arg_UNSANITIZED)
    list(JOIN arg_UNSANITIZED ":" unsanitized)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-${unsanitized}")
  endif()
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
