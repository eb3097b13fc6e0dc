# find_package(hpcdl) -> hpcdl::hpcdl, headers under include/hpcdl, the program in bin. Also from the build folder,
# uninstalled.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(hpcdl_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hpcdl)
install(TARGETS hpcdl hpcdl_flags EXPORT hpcdlTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT hpcdlTargets NAMESPACE hpcdl:: DESTINATION ${hpcdl_package_dir})
export(EXPORT hpcdlTargets NAMESPACE hpcdl:: FILE ${PROJECT_BINARY_DIR}/hpcdlTargets.cmake)
# The public face: its headers include only each other and the standard library.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/hpcdl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hpcdlConfig.cmake.in ${PROJECT_BINARY_DIR}/hpcdlConfig.cmake
  INSTALL_DESTINATION ${hpcdl_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hpcdlConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hpcdlConfig.cmake ${PROJECT_BINARY_DIR}/hpcdlConfigVersion.cmake DESTINATION ${hpcdl_package_dir})

# pkg-config --cflags --libs hpcdl: the library is static, so its dependencies come after it. Written at installation,
# when the prefix is known.
get_target_property(linked hpcdl LINK_LIBRARIES)
set(hpcdl_pc_libraries -pthread)
foreach(library IN LISTS linked)
  string(REGEX REPLACE "^\\$<INSTALL_INTERFACE:.*" "" library "${library}")
  string(REGEX REPLACE "^\\$<BUILD_INTERFACE:(.*)>$" "\\1" library "${library}")
  if(library MATCHES "^CUDA::cudart_static$")
    list(APPEND hpcdl_pc_libraries -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl)
  elseif(library MATCHES "^/(.*)/lib([^/]*)\\.(so|a)$")
    set(folder /${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    find_library(hpcdl_found_${name} ${name})
    if(NOT hpcdl_found_${name})  # the linker does not look there by itself
      list(APPEND hpcdl_pc_libraries -L${folder})
    endif()
    list(APPEND hpcdl_pc_libraries -l${name})
  elseif(library MATCHES "^[a-zA-Z0-9_.-]+$" AND NOT TARGET ${library})
    list(APPEND hpcdl_pc_libraries -l${library})
  endif()
endforeach()
list(JOIN hpcdl_pc_libraries " " hpcdl_pc_libraries)
set(hpcdl_pc_prefix "${CMAKE_INSTALL_PREFIX}")
set(CMAKE_INSTALL_PREFIX "@CMAKE_INSTALL_PREFIX@")
configure_file(${PROJECT_SOURCE_DIR}/cmake/hpcdl.pc.in ${PROJECT_BINARY_DIR}/hpcdl.pc.in @ONLY)
set(CMAKE_INSTALL_PREFIX "${hpcdl_pc_prefix}")
install(CODE "configure_file(\"${PROJECT_BINARY_DIR}/hpcdl.pc.in\" \"${PROJECT_BINARY_DIR}/hpcdl.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/hpcdl.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The installed program prints completions and man pages, from the same texts as --help.
if(TARGET hpcdl_cli AND NOT CMAKE_CROSSCOMPILING)
  foreach(place bash:${CMAKE_INSTALL_DATADIR}/bash-completion/completions zsh:${CMAKE_INSTALL_DATADIR}/zsh/site-functions
      fish:${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d man:${CMAKE_INSTALL_MANDIR}/man1)
    string(REGEX MATCH "^([a-z]+):(.*)$" matched ${place})
    install(CODE "execute_process(COMMAND $<TARGET_FILE:hpcdl_cli> completion ${CMAKE_MATCH_1}
  --out \"${PROJECT_BINARY_DIR}/installed/${CMAKE_MATCH_1}\" COMMAND_ERROR_IS_FATAL ANY)")
    install(DIRECTORY ${PROJECT_BINARY_DIR}/installed/${CMAKE_MATCH_1}/ DESTINATION ${CMAKE_MATCH_2})
  endforeach()
endif()
