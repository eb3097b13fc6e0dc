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
# What comes with it: the licence, a pkg-config file, completions and man pages; no empty folder, and no path of this machine's MPI.
file(GLOB_RECURSE installed LIST_DIRECTORIES true ${prefix}/*)
foreach(wanted share/doc/hpcdl/LICENSE pkgconfig/hpcdl.pc bash-completion/completions/hpcdl zsh/site-functions/_hpcdl
    fish/vendor_completions.d/hpcdl.fish man1/hpcdl.1 man1/hpcdl-train.1 man1/hpcdl-bench-comm.1)
  if(NOT installed MATCHES "/${wanted}")
    message(FATAL_ERROR "not installed: ${wanted}")
  endif()
endforeach()
# Of headers the public face, and each of them is in the program that is built below.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
list(LENGTH headers count)
if(count GREATER 25)
  message(FATAL_ERROR "${count} headers are installed: at most 25 are the public face")
endif()
file(READ ${SOURCE_DIR}/consumer.cpp text)
foreach(header IN LISTS headers)
  if(NOT text MATCHES "\"${header}\"")
    message(FATAL_ERROR "consumer.cpp does not include ${header}: no test says that it compiles alone")
  endif()
endforeach()
foreach(path IN LISTS installed)
  file(GLOB inside ${path}/*)
  if(IS_DIRECTORY ${path} AND NOT inside)
    message(FATAL_ERROR "an empty folder: ${path}")
  endif()
  if(path MATCHES "/hpcdlTargets[^/]*\\.cmake$")
    file(READ ${path} targets)
    if(targets MATCHES "/lib[a-z]*mpi[a-z]*\\.(so|a)")
      message(FATAL_ERROR "${path} holds where this machine has its MPI: ${CMAKE_MATCH_0}")
    endif()
  elseif(path MATCHES "/hpcdl\\.pc$")
    set(pc ${path})
  endif()
endforeach()
find_program(pkg_config NAMES pkg-config pkgconf)
file(STRINGS ${BINARY_DIR}/CMakeCache.txt sanitized REGEX "^HPCDL_SANITIZE:[A-Z]+=.+")  # its runtime is in no pkg-config file
if(pkg_config AND NOT sanitized)
  cmake_path(GET pc PARENT_PATH folder)
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${folder} sh -c
      "${CXX} ${SOURCE_DIR}/consumer.cpp -o ${BINARY_DIR}/install-check/by-pkg-config $(${pkg_config} --cflags --libs hpcdl)")
  run(${BINARY_DIR}/install-check/by-pkg-config)
endif()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${consumer} -G Ninja -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${consumer})
run(${consumer}/consumer)

# The same without installing, from the build folder.
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${consumer}-uninstalled -G Ninja -D hpcdl_DIR=${BINARY_DIR} -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${consumer}-uninstalled)
run(${consumer}-uninstalled/consumer)

# A build wants its tests, whatever the one before it in this folder did, and says what they take.
execute_process(COMMAND ${CMAKE_COMMAND} --preset release -N WORKING_DIRECTORY ${SOURCE_DIR}/../.. OUTPUT_VARIABLE preset)
if(NOT preset MATCHES "HPCDL_TESTS=\"ON\"")
  message(FATAL_ERROR "the preset leaves HPCDL_TESTS as it was: `make build` has turned it off\n${preset}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR}/../.. -B ${consumer}-no-gtest -G Ninja -D CMAKE_DISABLE_FIND_PACKAGE_GTest=ON
  -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_C_COMPILER=${CC} -D HPCDL_MPI=OFF RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(status EQUAL 0 OR NOT out MATCHES "libgtest-dev")
  message(FATAL_ERROR "without GTest:\n${out}")
endif()

# A kernel in C, built against the installed header alone and verified by the installed program.
run(${CC} -O2 -std=c99 -shared -fPIC -I ${prefix}/include ${SOURCE_DIR}/../../examples/04_my_kernels.c -o ${consumer}/my_kernels.so -lm)
run(${prefix}/bin/hpcdl verify ${consumer}/my_kernels.so)
