# CUDA as a language.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(HPCDL_NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin REQUIRED)
  set(CMAKE_CUDA_COMPILER ${HPCDL_NVCC})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)  # A100; H100/H200 with the architecture-specific instructions
endif()
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 speaks C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr")

# Headers that kernels on both devices share must stay readable by nvcc.
add_library(hpcdl_cuda_headers OBJECT ${PROJECT_SOURCE_DIR}/tests/cuda_headers.cu)
target_include_directories(hpcdl_cuda_headers PRIVATE ${PROJECT_SOURCE_DIR})
