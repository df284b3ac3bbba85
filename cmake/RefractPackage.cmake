# `cpack --config build/release/CPackConfig.cmake -B build/packages`: one .deb
# with the programs, the libraries of LibTorch that they need, and systemd units
# (docs/how-to/packages.md). Libraries and headers for developers are not part of it.
#
# `cmake --install` installs nothing of the following.
set(package COMPONENT package EXCLUDE_FROM_ALL)
install(FILES deploy/systemd/refract-cpu-node.service
  deploy/systemd/refract-gpu-node.service
  DESTINATION lib/systemd/system ${package})
install(FILES deploy/systemd/refract.sysusers DESTINATION lib/sysusers.d
  RENAME refract.conf ${package})
install(FILES LICENSE DESTINATION share/doc/refract RENAME copyright ${package})

# Libraries that the programs load and Debian lacks: LibTorch and its neighbours.
# Found at installation, by the loader's rules.
install(CODE "
  set(programs \"$<TARGET_FILE:refract_program>\"
    \"$<TARGET_FILE:refract_cpu_node_program>\"
    \"$<TARGET_FILE:refract_gpu_node_program>\")" ${package})
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs}
    RESOLVED_DEPENDENCIES_VAR found
    UNRESOLVED_DEPENDENCIES_VAR missing
    POST_EXCLUDE_REGEXES "^/lib" "^/usr/lib")
  if(missing)
    message(FATAL_ERROR "the package cannot be made: not found: ${missing}")
  endif()
  file(INSTALL ${found} DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/refract"
    FOLLOW_SYMLINK_CHAIN)
  # Programs look for libraries only in the package's folders.
  foreach(program IN LISTS programs)
    get_filename_component(name "${program}" NAME)
    file(RPATH_SET FILE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin/${name}"
      NEW_RPATH "$ORIGIN/../lib/refract")
  endforeach()
]] ${package})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME refract)
set(CPACK_PACKAGE_VENDOR "Refract")
set(CPACK_PACKAGE_CONTACT "Refract maintainers <maintainers@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
  "Serves recommendation models from separate pools of CPU and GPU nodes")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL programs package)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # xz takes minutes for LibTorch
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS python3)  # refract run --mode reference
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
file(GLOB torch_libraries LIST_DIRECTORIES true
  "${TorchCpu_ROOT}/lib" "${TorchCpu_ROOT}/../nvidia/*/lib")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${torch_libraries})
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "${PROJECT_SOURCE_DIR}/deploy/debian/postinst"
  "${PROJECT_SOURCE_DIR}/deploy/debian/prerm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
