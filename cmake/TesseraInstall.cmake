# cmake --install: a tree that works wherever it is moved, for people who run the program and for
# projects that call find_package(Tessera).
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Tessera")
file(RELATIVE_PATH bin_to_lib "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
set_target_properties(tessera PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(tessera_command PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
target_link_options(tessera_command PRIVATE -Wl,--disable-new-dtags)  # TesseraBundle.cmake says why

install(TARGETS tessera EXPORT TesseraTargets)
install(TARGETS tessera_command)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/src/tessera" TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/tessera")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" TYPE DOC)
# Manual pages and completion: made by the program, from the tables that it reads itself.
if(NOT CMAKE_CROSSCOMPILING)
  install(
    CODE "set(program \"$<TARGET_FILE:tessera_command>\")
set(share \"${CMAKE_INSTALL_DATADIR}\")
cmake_path(ABSOLUTE_PATH share BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\")
set(made \"${PROJECT_BINARY_DIR}/pages\")
include(\"${PROJECT_SOURCE_DIR}/cmake/InstallPages.cmake\")")
endif()

install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION "${package_dir}")
# The build folder is a package, too: -DTessera_DIR=build.
export(EXPORT TesseraTargets NAMESPACE Tessera:: FILE "${PROJECT_BINARY_DIR}/TesseraTargets.cmake")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in" "${PROJECT_BINARY_DIR}/TesseraConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake" DESTINATION "${package_dir}")
