# Tests at the same time (`ctest -j`, as scripts/test.sh runs them): which take long, and which must run alone.
#   SECONDS TEST [HOW]   on two cores; the longest begin first
#     alone      its result depends on times: it compares kernels with the measured limits of the machine
#     measures   measures the machine, and continues until the rates are stable: one of these at a time
#     ranks      more processes than cores, with deadlines of seconds for each other: one of these at a time
#   hpcdl_scheduled(TEST)   after its add_test()
#   hpcdl_ends_within(TEST SECONDS)   otherwise it fails; under a sanitizer ten times as long
#   hpcdl_check_schedule()  at the end: an error if a row names no test
set(HPCDL_SCHEDULE
  "28 tests.planted_kernels alone" "2 tools.verify alone" "1 tests.cli.verify alone" "1 tests.install alone" "1 examples.04_my_kernels alone"
  "39 tests.cli.probe measures" "8 tools.roofs measures" "8 python.bench measures" "8 tests.cli.bench measures" "5 tests.cli.roofline measures"
  "1 tests.cli.bench_ranks measures" "1 tools.probe measures"
  "47 tests.slurm.train ranks" "35 tests.launchers.many ranks" "30 tests.launchers.restart ranks" "31 tests.hosts.cut_off ranks" "22 comm.transport.mpi ranks"
  "19 tests.launchers.mpi_faults ranks" "17 tests.launchers.mpirun ranks" "13 tests.launchers.data_parallel ranks" "10 tests.launchers.mesh ranks"
  "12 tests.launchers.ssh ranks" "8 tests.launchers.torchrun ranks" "1 tests.launchers.gpus ranks"
  "38 python.install" "20 comm.transport.growth ranks" "34 comm.watch.processes" "31 comm.watch.injected" "30 comm.transport.tcp" "25 comm.watch" "19 comm.algo" "15 ops.attention" "12 models.language_model"
  "10 train.mesh_ranks" "10 comm.bootstrap.rendezvous" "9 ops.conv2d" "8 models.hf_config" "8 ops.softmax" "8 parallel.tensor" "6 tests.format"
  "6 ops.matmul.gemm" "6 python.errors" "5 ops.bias_gelu" "5 ops.lm_head_loss")

function(hpcdl_scheduled name)
  set_property(GLOBAL APPEND PROPERTY hpcdl_tests ${name})
  foreach(row IN LISTS HPCDL_SCHEDULE)
    if(row MATCHES "^([0-9]+) ${name}( ([a-z]+))?$")
      set_tests_properties(${name} PROPERTIES COST ${CMAKE_MATCH_1})
      if(CMAKE_MATCH_3 STREQUAL alone)
        set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
      elseif(CMAKE_MATCH_3)
        set_tests_properties(${name} PROPERTIES RESOURCE_LOCK ${CMAKE_MATCH_3})
      endif()
    endif()
  endforeach()
endfunction()

function(hpcdl_ends_within name seconds)
  if(HPCDL_SANITIZE)
    math(EXPR seconds "10 * ${seconds}")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()

function(hpcdl_check_schedule)
  get_property(tests GLOBAL PROPERTY hpcdl_tests)
  foreach(row IN LISTS HPCDL_SCHEDULE)
    string(REGEX REPLACE "^[0-9]+ ([^ ]+).*" "\\1" name ${row})
    if(NOT name IN_LIST tests AND (HPCDL_PYTHON OR NOT name MATCHES "^python\\."))
      message(FATAL_ERROR "cmake/HpcdlSchedule.cmake: there is no test ${name}")
    endif()
  endforeach()
endfunction()
