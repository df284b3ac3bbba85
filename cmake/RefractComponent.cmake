# refract_component(NAME SOURCES … HEADERS … [DEPS …] [PRIVATE_DEPS …])
#
# One library target per component: refract_NAME, alias refract::NAME. Headers
# form a FILE_SET rooted at the repository, so includes are written from there
# and CMAKE_VERIFY_INTERFACE_HEADER_SETS can prove each self-contained.
set(REFRACT_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(REFRACT_WERROR)
  list(APPEND REFRACT_WARNINGS -Werror)
endif()

function(refract_apply_flags target)
  target_compile_options(${target} PRIVATE ${REFRACT_WARNINGS})
  if(REFRACT_SANITIZE)
    list(JOIN REFRACT_SANITIZE "," sanitize)
    target_compile_options(${target} PRIVATE
      -fsanitize=${sanitize} -fno-omit-frame-pointer -fno-sanitize-recover=all
      # GCC warns of initialised variables when a sanitizer instruments them.
      # Clang, the fuzz targets' compiler, does not know the warning.
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} PRIVATE -fsanitize=${sanitize})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND REFRACT_SANITIZE STREQUAL "address;undefined")
      # Half of the time to compile. AddressSanitizer finds null pointers and the
      # ends of objects by itself, and calls a function per access instead of
      # inlining it. Clang's build of the fuzz targets checks alignment. vptr would
      # need typeinfo that LibTorch does not export.
      target_compile_options(${target} PRIVATE
        -fno-sanitize=null,object-size,alignment,vptr
        --param=asan-instrumentation-with-call-threshold=0)
    endif()
    if(REFRACT_SANITIZE MATCHES "thread")
      # ThreadSanitizer knows no fences, which GCC reports as an error. Asio's
      # handlers are handed from thread to thread under a mutex as well.
      target_compile_definitions(${target} PRIVATE BOOST_ASIO_DISABLE_FENCED_BLOCK)
    endif()
  endif()
endfunction()

function(refract_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target refract_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(refract::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_sources(${target} PUBLIC
    FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HEADERS})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/refract>)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  refract_apply_flags(${target})
  refract_unity(${target})
  set_property(GLOBAL APPEND PROPERTY REFRACT_COMPONENTS ${target})
endfunction()

# Compiles the sources of `target` a folder at a time (REFRACT_UNITY): headers take
# more than half of a file's compile time, and a folder's files share them.
# Small folders join their parent's; a unit has ten files at most, so that both
# cores have work and memory suffices. CMake leaves files with compile options
# of their own, for example kernels, out.
function(refract_unity target)
  if(NOT REFRACT_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    list(APPEND files_of_${folder} ${source})
  endforeach()
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    list(LENGTH files_of_${folder} count)
    if(count LESS 4)
      cmake_path(GET folder PARENT_PATH folder)
    endif()
    string(MAKE_C_IDENTIFIER "${folder}" group)
    math(EXPR members_${group} "${members_${group}} + 1")
    math(EXPR unit "(${members_${group}} - 1) / 10")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP "${group}_${unit}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# For a target that runs once per command or start. -O1 compiles a third faster
# than -O3.
function(refract_compile_fast target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Sources that include LibTorch become a separate object library, since
# its include path is for these files only: the wheel carries old Protobuf
# headers that must never meet ours in one translation unit.
function(refract_torch_sources target)
  set(adapters "${target}_adapters")
  # A source is compiled once, in the object library.
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_ITEM sources ${ARGN})
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
  add_library(${adapters} OBJECT ${ARGN})
  target_include_directories(${adapters}
    PRIVATE "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
  target_include_directories(${adapters} SYSTEM PRIVATE
    "${TorchCpu_INCLUDE_DIR}" "${TorchCpu_INCLUDE_DIR}/torch/csrc/api/include")
  target_compile_definitions(${adapters}
    PRIVATE "$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>")
  target_compile_options(${adapters} PRIVATE
    "$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>" -Wno-deprecated-declarations)
  refract_unity(${adapters})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${adapters}>)
  target_link_libraries(${target} PRIVATE
    "${TorchCpu_LIBRARY}" "${TorchCpu_C10_LIBRARY}")
endfunction()

# refract_program(NAME SOURCES … DEPS …): an executable that is installed.
function(refract_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "-" "_" target "${name}_program")
  add_executable(${target} ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin"
    INSTALL_RPATH "\$ORIGIN/../lib/refract;${TorchCpu_ROOT}/lib")
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
  refract_apply_flags(${target})
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    COMPONENT programs)
  # Manual page and completion scripts, printed by the program itself.
  install(CODE "
    set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    foreach(page IN ITEMS
        man/man1/${name}.1=--man bash-completion/completions/${name}=--completion=bash
        zsh/vendor-completions/_${name}=--completion=zsh
        fish/vendor_completions.d/${name}.fish=--completion=fish)
      string(REGEX MATCH \"^([^=]*)=(.*)$\" matched \"\${page}\")
      set(file \"\${share}/\${CMAKE_MATCH_1}\")
      set(option \"\${CMAKE_MATCH_2}\")
      get_filename_component(folder \"\${file}\" DIRECTORY)
      file(MAKE_DIRECTORY \"\${folder}\")
      execute_process(COMMAND \"$<TARGET_FILE:${target}>\" \${option}
        OUTPUT_FILE \"\${file}\" RESULT_VARIABLE status)
      if(status)
        message(FATAL_ERROR \"${name} \${option}: \${status}\")
      endif()
      message(STATUS \"Installing: \${file}\")
    endforeach()" COMPONENT programs)
endfunction()

# refract_page_files(OUTPUT FOLDER FUNCTION HEADER NAMESPACE)
#
# Writes the C++ source OUTPUT with FUNCTION() of HEADER, which returns the files of
# FOLDER (*.html, *.css, *.js) as string literals: the page of a report, built into
# the library.
function(refract_page_files output folder function header namespace)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
    ${folder}/*.html ${folder}/*.css ${folder}/*.js)
  list(SORT files)
  set(REFRACT_PAGE_FILES "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    cmake_path(GET file FILENAME name)
    file(READ "${file}" text)
    string(APPEND REFRACT_PAGE_FILES
      "      {\"${name}\", R\"refractpage(${text})refractpage\"},\n")
  endforeach()
  set(REFRACT_PAGE_FUNCTION ${function})
  set(REFRACT_PAGE_HEADER ${header})
  set(REFRACT_PAGE_NAMESPACE ${namespace})
  set(REFRACT_PAGE_FOLDER ${folder})
  configure_file("${PROJECT_SOURCE_DIR}/cmake/page_files.cc.in" "${output}" @ONLY)
endfunction()
