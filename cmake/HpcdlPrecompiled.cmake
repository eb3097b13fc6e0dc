# Precompiled headers: those of the standard library and of other libraries, which change only with the machine. None of
# our own, because changing one would compile everything again; only the one that says that the code of JSON values is
# compiled once. No source may rely on them; every file includes what it uses.
# The presets dev and fuzz build without them (CMAKE_DISABLE_PRECOMPILE_HEADERS), and tests/includes.test.cpp
# checks every file.
#   hpcdl_precompile_kernels(TARGET)   the kernels' set, compiled with the flags of TARGET
#   hpcdl_precompiled(TARGET KIND)     TARGET shares the headers and the optimisation level of all targets of a KIND: code or test

set(HPCDL_PRECOMPILED <algorithm> <array> <atomic> <bit> <chrono> <cmath> <cstdint> <cstring> <filesystem> <fstream> <functional> <map> <memory>
    <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple> <unordered_map> <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>)
set(HPCDL_JSON_TEMPLATES ${PROJECT_SOURCE_DIR}/hpcdl/core/json_templates.h)
set(HPCDL_PRECOMPILED_FOR_KERNELS <algorithm> <array> <atomic> <bit> <cmath> <cstdint> <cstring> <memory> <optional> <span> <string> <string_view>
    <vector> <fmt/core.h> <immintrin.h>)

# What a compiler cache needs for precompiled headers: its name in preprocessed text, and no time stamps in it.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>" "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")

function(hpcdl_precompile_kernels target)
  target_precompile_headers(${target} PRIVATE ${HPCDL_PRECOMPILED_FOR_KERNELS})
endfunction()

# A target only for its precompiled headers. OPTIONS: of all C++ code of the kind. With a precompiled header GCC takes the
# optimisation level of most passes from it, whatever the command line says, and it uses no header that was compiled with
# -fPIE for code with -fPIC, nor the reverse.
function(hpcdl_precompiled_kind kind)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBRARIES;OPTIONS")
  set(source ${CMAKE_CURRENT_BINARY_DIR}/precompiled_for_${kind}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Carries the precompiled headers of every ${kind}.\n")
  add_library(hpcdl_precompiled_for_${kind} OBJECT EXCLUDE_FROM_ALL ${source})
  set_target_properties(hpcdl_precompiled_for_${kind} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(hpcdl_precompiled_for_${kind} PRIVATE ${arg_OPTIONS})
  target_link_libraries(hpcdl_precompiled_for_${kind} PRIVATE hpcdl_flags Threads::Threads ${arg_LIBRARIES})
  target_precompile_headers(hpcdl_precompiled_for_${kind} PRIVATE ${arg_HEADERS})
  set_property(GLOBAL PROPERTY hpcdl_options_of_${kind} "$<$<COMPILE_LANGUAGE:CXX>:${arg_OPTIONS}>")
endfunction()

function(hpcdl_precompiled target kind)
  target_precompile_headers(${target} REUSE_FROM hpcdl_precompiled_for_${kind})
  get_property(options GLOBAL PROPERTY hpcdl_options_of_${kind})
  target_compile_options(${target} PRIVATE "${options}")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)  # -fPIE or -fPIC comes from the kind
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  endif()
  # In a precompiled header, GCC 12 does not recognise code of the standard library, and warns about its "text" +
  # std::string (bug 105651).
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
endfunction()
