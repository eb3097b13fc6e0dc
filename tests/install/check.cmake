# cmake -D BINARY_DIR= -D SOURCE_DIR= -D CXX= -D CC= -P check.cmake
set(prefix ${BINARY_DIR}/install-check/prefix)
set(consumer ${BINARY_DIR}/install-check/consumer)
file(REMOVE_RECURSE ${BINARY_DIR}/install-check)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}\n${out}")
  endif()
  message(STATUS "${out}")
endfunction()

run(${CMAKE_COMMAND} --install ${BINARY_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${consumer} -G Ninja -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${consumer})
run(${consumer}/consumer)

# A kernel in C, built against the installed header alone and verified by the installed program.
run(${CC} -O2 -std=c99 -shared -fPIC -I ${prefix}/include ${SOURCE_DIR}/../../examples/04_my_kernels.c -o ${consumer}/my_kernels.so -lm)
run(${prefix}/bin/hpcdl verify ${consumer}/my_kernels.so)
