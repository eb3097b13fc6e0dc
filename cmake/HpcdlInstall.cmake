# find_package(hpcdl) -> hpcdl::hpcdl, headers under include/hpcdl, the program in bin. Also from the build folder, uninstalled.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(hpcdl_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hpcdl)
install(TARGETS hpcdl hpcdl_flags EXPORT hpcdlTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT hpcdlTargets NAMESPACE hpcdl:: DESTINATION ${hpcdl_package_dir})
export(EXPORT hpcdlTargets NAMESPACE hpcdl:: FILE ${PROJECT_BINARY_DIR}/hpcdlTargets.cmake)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/hpcdl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hpcdlConfig.cmake.in ${PROJECT_BINARY_DIR}/hpcdlConfig.cmake
  INSTALL_DESTINATION ${hpcdl_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hpcdlConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hpcdlConfig.cmake ${PROJECT_BINARY_DIR}/hpcdlConfigVersion.cmake DESTINATION ${hpcdl_package_dir})
