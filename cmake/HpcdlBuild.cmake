# Flags, ccache, and the verbs of this build:
#   hpcdl_folder_target(NAME) the target hpcdl_NAME: the objects of one folder of the library
#   hpcdl_sources(FILES...)   adds files to the target ${hpcdl_target}, a folder of the library or the lab, each by the rule of its ending;
#                             kernels to those of ${hpcdl_kernels}
#   hpcdl_op(NAME)            everything in ops/NAME: NAME.cpp, *.simd.cpp, *.cu, *.test.cpp
#   hpcdl_test(FILE)          one test program from one file
#   hpcdl_library(NAME HEADER PACKAGE)   links -lNAME, or stops and names the Debian package

find_program(HPCDL_CCACHE ccache)
if(HPCDL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What it must ignore to cache a file that is compiled with precompiled headers (its manual, "Precompiled headers"),
  # and relative names, so that build folders share results: `pip install .` has its own folder.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${HPCDL_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()
# GNU ld and not lld: GCC emits empty cold parts of functions, and lld 14 then keeps their unwind entry instead of that of
# the next function, so that an exception which passes there aborts.

if(HPCDL_FUZZ)
  # The fuzzer is guided by the coverage of the library itself.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# "hpcdl/core/error.h" is a header of the sources, "hpcdl/error.h" one of the installed ones.
set(HPCDL_INCLUDE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)

add_library(hpcdl_flags INTERFACE)
# Warnings are errors only for known compilers: newer ones have more warnings, which must not break builds of
# users.
set(HPCDL_KNOWN_COMPILER OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 17)
  set(HPCDL_KNOWN_COMPILER ON)
endif()
option(HPCDL_WERROR "Warnings are errors" ${HPCDL_KNOWN_COMPILER})
target_compile_options(hpcdl_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;$<$<BOOL:${HPCDL_WERROR}>:-Werror>;-Wshadow;-Wno-psabi>)
# GCC inlines across std headers and its own intrinsics (_mm512_undefined_ps, bug 105593) and then warns about code that
# it generated itself.
target_compile_options(hpcdl_flags INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
# GCC needs no garbage collection for most of our files: that saves a tenth of the compile time, for at most half a
# gigabyte.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
if(HPCDL_SANITIZE)
  set(sanitizing -O1 -g -UNDEBUG -fsanitize=${HPCDL_SANITIZE} -fno-omit-frame-pointer)
  if(HPCDL_SANITIZE MATCHES undefined)
    list(APPEND sanitizing -fno-sanitize-recover=undefined)
  endif()
  # Kernels that are not sanitized are compiled as in a release, so a compiler cache has them.
  if(NOT HPCDL_SANITIZE_KERNELS)
    set(sanitizing "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:HPCDL_KERNELS>>>:${sanitizing}>")
  endif()
  add_compile_options("${sanitizing}")
  add_link_options(-fsanitize=${HPCDL_SANITIZE})
endif()

# One flag set per instruction set of simd/isa.h. No kernel may assume finite math; contraction to FMA is intended.
set(HPCDL_ISAS scalar avx2 avx512)
set(HPCDL_FLAGS_scalar "")
set(HPCDL_FLAGS_avx2 -mavx2 -mfma -mf16c -DHPCDL_SIMD_AVX2)
set(HPCDL_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16
    -mavx512vbmi -mprefer-vector-width=512 -DHPCDL_SIMD_AVX512)

# -O3 for every build type except Debug. The scalar set is the fallback of a CPU without AVX2 and the peer of
# tests: it has no FMA to contract, so its bits are the same at -O1, which takes half the time to compile. Sanitized
# kernels are at -O1, too: with the checks in them, attention's backward alone takes GCC 226 s at -O3, and 27 s at -O1.
set(kernel_optimization_scalar $<$<NOT:$<CONFIG:Debug>>:-O1>)
set(kernel_optimization_avx2 $<$<NOT:$<CONFIG:Debug>>:-O3>)
set(kernel_optimization_avx512 ${kernel_optimization_avx2})
if(HPCDL_FUZZ OR (HPCDL_SANITIZE AND HPCDL_SANITIZE_KERNELS))
  foreach(isa IN LISTS HPCDL_ISAS)
    set(kernel_optimization_${isa} -O1)
  endforeach()
endif()
# One library of objects for each instruction set: PREFIX_simd_avx2 and so on. All share the precompiled headers of the
# library's kernels.
function(hpcdl_kernel_targets prefix)
  foreach(isa IN LISTS HPCDL_ISAS)
    add_library(${prefix}_simd_${isa} OBJECT)
    target_compile_options(${prefix}_simd_${isa} PRIVATE ${HPCDL_FLAGS_${isa}} -DHPCDL_SIMD_TU ${kernel_optimization_${isa}} -fno-math-errno -fno-trapping-math)
    set_target_properties(${prefix}_simd_${isa} PROPERTIES HPCDL_KERNELS ON)
    target_link_libraries(${prefix}_simd_${isa} PRIVATE hpcdl_flags)
    # GCC's own AVX-512 headers start reductions from a register "initialised with itself" (GCC bug 105593).
    target_compile_options(${prefix}_simd_${isa} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-uninitialized>)
    target_include_directories(${prefix}_simd_${isa} PRIVATE ${HPCDL_INCLUDE})
    if(prefix STREQUAL hpcdl)
      hpcdl_precompile_kernels(${prefix}_simd_${isa})
    else()
      target_precompile_headers(${prefix}_simd_${isa} REUSE_FROM hpcdl_simd_${isa})
    endif()
  endforeach()
endfunction()
hpcdl_kernel_targets(hpcdl)

function(hpcdl_folder_target name)
  set(target hpcdl_${name})
  add_library(${target} OBJECT)
  target_include_directories(${target} PRIVATE ${HPCDL_INCLUDE})
  target_link_libraries(${target} PRIVATE hpcdl_flags Threads::Threads fmt::fmt nlohmann_json::nlohmann_json)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HPCDL_UNITY} UNITY_BUILD_MODE GROUP)
  if(HPCDL_CUDA)
    hpcdl_link_cuda(${target})
  endif()
  hpcdl_precompiled(${target} code)
endfunction()

# Most of the compile time of a small file goes into templates that its neighbours use, too, so the files of a target are
# compiled several at a time, in order, up to so many bytes. Kernels are not: what the compiler inlines depends on the
# whole.
set(HPCDL_COMPILED_TOGETHER 120000)
function(hpcdl_compile_together file)
  get_property(part GLOBAL PROPERTY ${hpcdl_target}_part)
  get_property(bytes GLOBAL PROPERTY ${hpcdl_target}_bytes)
  file(SIZE ${file} size)
  math(EXPR part "0${part}")
  math(EXPR bytes "0${bytes} + ${size}")
  if(bytes GREATER HPCDL_COMPILED_TOGETHER)
    math(EXPR part "${part} + 1")
    set(bytes ${size})
  endif()
  set_property(GLOBAL PROPERTY ${hpcdl_target}_part ${part})
  set_property(GLOBAL PROPERTY ${hpcdl_target}_bytes ${bytes})
  set_source_files_properties(${file} TARGET_DIRECTORY ${hpcdl_target} PROPERTIES UNITY_GROUP ${part})
endfunction()

function(hpcdl_sources)
  foreach(file IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    if(file MATCHES "\\.test\\.cpp$")
      hpcdl_test(${file})
    elseif(file MATCHES "\\.fuzz\\.cpp$")
      hpcdl_fuzz(${file})
    elseif(file MATCHES "\\.simd\\.cpp$")
      foreach(isa IN LISTS HPCDL_ISAS)
        target_sources(${hpcdl_kernels}_simd_${isa} PRIVATE ${file})
      endforeach()
    elseif(file MATCHES "\\.cu$")
      if(HPCDL_CUDA)
        target_sources(${hpcdl_target} PRIVATE ${file})
      endif()
    else()
      target_sources(${hpcdl_target} PRIVATE ${file})
      hpcdl_compile_together(${file})
    endif()
  endforeach()
endfunction()

function(hpcdl_op name)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cu)
  hpcdl_sources(${files})
endfunction()

# Every .cpp/.cu of the calling folder.
function(hpcdl_folder)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  hpcdl_sources(${files})
endfunction()

# ops/softmax/softmax.test.cpp -> target and test "ops.softmax"
function(hpcdl_test file)
  if(NOT HPCDL_TESTS)
    return()
  endif()
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE rel)
  string(REGEX REPLACE "\\.test\\.cpp$" "" name ${rel})
  string(REGEX REPLACE "^hpcdl/" "" name ${name})
  string(REPLACE "/" "." name ${name})
  string(REPLACE "." ";" parts ${name})
  list(POP_BACK parts last)
  if(parts MATCHES "(^|;)${last}$")
    list(JOIN parts "." name)
  endif()
  add_executable(test.${name} ${file})
  set(tools)
  if(NOT rel MATCHES "^hpcdl/")  # the library's tests know nothing above it
    set(tools hpcdl_tools)
  endif()
  target_link_libraries(test.${name} PRIVATE hpcdl_testing ${tools} hpcdl_flags GTest::gtest GTest::gtest_main)
  target_compile_definitions(test.${name} PRIVATE HPCDL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  hpcdl_precompiled(test.${name} test)
  set_target_properties(test.${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test OUTPUT_NAME ${name})
  add_test(NAME ${name} COMMAND test.${name})
  # All its cases were skipped: CTest must not count it as passed. This is the output of GoogleTest in that case.
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]*\n)+$")
  hpcdl_ends_within(${name} 600)
  hpcdl_scheduled(${name})
endfunction()

# io/safetensors.fuzz.cpp -> program fuzz/io.safetensors
function(hpcdl_fuzz file)
  if(NOT HPCDL_FUZZ)
    return()
  endif()
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/hpcdl OUTPUT_VARIABLE rel)
  string(REGEX REPLACE "\\.fuzz\\.cpp$" "" name ${rel})
  string(REPLACE "/" "." name ${name})
  add_executable(fuzz.${name} ${file})
  target_link_libraries(fuzz.${name} PRIVATE hpcdl hpcdl_flags)
  target_compile_definitions(fuzz.${name} PRIVATE HPCDL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(fuzz.${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz.${name} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzz_targets)
    add_custom_target(fuzz_targets)
  endif()
  add_dependencies(fuzz_targets fuzz.${name})
  set_target_properties(fuzz.${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz OUTPUT_NAME ${name})
endfunction()

function(hpcdl_library name header package)
  find_path(hpcdl_header_${name} ${header})
  find_library(hpcdl_file_${name} ${name})
  if(NOT hpcdl_header_${name} OR NOT hpcdl_file_${name})
    message(FATAL_ERROR "${header} or lib${name} is missing: apt-get install ${package}")
  endif()
  target_link_libraries(hpcdl PRIVATE ${name})
endfunction()
