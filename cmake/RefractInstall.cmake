# `cmake --install`: programs, component libraries with headers, and a package
# file, so that find_package(refract) gives refract::<component>.
get_property(components GLOBAL PROPERTY REFRACT_COMPONENTS)
install(TARGETS ${components} EXPORT refractTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/refract)
install(EXPORT refractTargets NAMESPACE refract::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/refract)
include(CMakePackageConfigHelpers)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/refractConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/refractConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/refract)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/refractConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/refractConfig.cmake"
  "${PROJECT_BINARY_DIR}/refractConfigVersion.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/refract)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION ${CMAKE_INSTALL_DOCDIR})
