# CUDA as a language; nvcc is found by HpcdlFindNvcc.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND SKBUILD)
  hpcdl_architectures_here(CMAKE_CUDA_ARCHITECTURES)
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)  # A100; H100/H200 with the architecture-specific instructions
endif()
# Without precompiled headers ccache need not ignore times: what nvcc makes of a header that is edited meanwhile must not be
# kept as the result of its new contents.
string(REPLACE ",include_file_mtime,include_file_ctime" "" CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 supports C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
# FMT_USE_CONSTEXPR: fmt 9 mistakes nvcc for a compiler without it.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1")

find_package(CUDAToolkit REQUIRED)

# Adds CUDA to the library target; called after the target exists.
function(hpcdl_link_cuda target)
  target_compile_definitions(${target} PUBLIC HPCDL_CUDA=1)
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  find_path(HPCDL_CUPTI_HEADERS cupti.h PATHS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES ../extras/CUPTI/include)
  if(HPCDL_CUPTI_HEADERS)  # the library itself is loaded at run time: hpcdl profile
    target_compile_definitions(${target} PRIVATE HPCDL_CUPTI=1)
    target_include_directories(${target} SYSTEM PRIVATE ${HPCDL_CUPTI_HEADERS})
  endif()
  find_path(HPCDL_NCCL_HEADERS nccl.h PATHS ${CUDAToolkit_INCLUDE_DIRS})
  if(HPCDL_NCCL_HEADERS)  # the same: groups of several GPUs
    target_compile_definitions(${target} PUBLIC HPCDL_NCCL=1)
    target_include_directories(${target} SYSTEM PUBLIC ${HPCDL_NCCL_HEADERS})
  endif()
  find_path(HPCDL_CUDNN_HEADERS cudnn_graph.h PATHS ${CUDAToolkit_INCLUDE_DIRS})  # the same: convolutions, attention; version 9 is the first with this header
  if(HPCDL_CUDNN_HEADERS)
    set(folder ${PROJECT_SOURCE_DIR}/hpcdl)
    set_source_files_properties(${folder}/cuda/cudnn_plan.cpp ${folder}/ops/conv2d/cudnn_plan.cpp ${folder}/ops/conv2d/cudnn_conv.cu
      ${folder}/ops/attention/cudnn_plan.cpp ${folder}/ops/attention/cudnn_attention.cu ${PROJECT_SOURCE_DIR}/tools/doctor/findings.cpp
      TARGET_DIRECTORY ${target} PROPERTIES COMPILE_DEFINITIONS HPCDL_CUDNN=1 INCLUDE_DIRECTORIES ${HPCDL_CUDNN_HEADERS})
  else()
    message(STATUS "no cudnn_graph.h: convolutions and attention run only on our own kernels")
  endif()
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_SEPARABLE_COMPILATION OFF)
endfunction()

# Every op spec, and the tests that train and load on a GPU, in one program that can be copied to a machine
# with a GPU (scripts/gpu.sh).
function(hpcdl_gpu_tests)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/hpcdl/ops/*/*.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/graph/*.test.cpp
    ${PROJECT_SOURCE_DIR}/hpcdl/train/*.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/io/upload.test.cpp
    ${PROJECT_SOURCE_DIR}/hpcdl/infer/engine.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/infer/speculation.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/infer/text_rules.test.cpp
    ${PROJECT_SOURCE_DIR}/hpcdl/infer/adapters.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/infer/gpu_invariant.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/infer/logprobs.test.cpp
    ${PROJECT_SOURCE_DIR}/hpcdl/infer/kv_window.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/infer/window_pages.test.cpp ${PROJECT_SOURCE_DIR}/hpcdl/infer/embedder.test.cpp
    ${PROJECT_SOURCE_DIR}/hpcdl/comm/nccl/*.test.cpp
    ${PROJECT_SOURCE_DIR}/hpcdl/parallel/reduce_pass.test.cpp)
  add_executable(gpu_tests ${PROJECT_SOURCE_DIR}/hpcdl/testing/gpu_main.cpp ${files})
  target_link_libraries(gpu_tests PRIVATE hpcdl_testing hpcdl hpcdl_flags GTest::gtest)
  target_compile_definitions(gpu_tests PRIVATE HPCDL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  hpcdl_precompiled(gpu_tests test)
endfunction()

# Headers that kernels of both devices share must compile with nvcc.
add_library(hpcdl_cuda_headers OBJECT ${PROJECT_SOURCE_DIR}/tests/cuda_headers.cu)
target_include_directories(hpcdl_cuda_headers PRIVATE ${HPCDL_INCLUDE})
