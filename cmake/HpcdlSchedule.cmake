# Tests at the same time (`ctest -j`, as scripts/test.sh runs them): which take long, and which must run alone.
#   SECONDS TEST [HOW]   on two cores, with two other tests beside it; the longest begin first
#     alone      its result depends on times: it compares kernels with the measured limits of the machine
#     measures   measures the machine, and continues until the rates are stable: one of these at a time
#     ranks      more processes than cores, with deadlines of seconds for each other: one of these at a time
#   hpcdl_scheduled(TEST)   after its add_test()
#   hpcdl_ends_within(TEST SECONDS)   otherwise it fails; under a sanitizer ten times as long
#   hpcdl_check_schedule()  at the end: an error if a row names no test
set(HPCDL_SCHEDULE
  "48 tests.planted_kernels alone" "5 tools.verify alone" "2 tests.cli.verify alone" "6 tests.install alone" "1 examples.04_my_kernels alone"
  "66 tests.cli.probe measures" "21 tests.cli.bench measures" "14 tools.roofs measures" "10 tests.cli.roofline measures" "2 python.bench measures"
  "3 tests.cli.bench_ranks measures" "1 tools.probe measures"
  "103 tests.slurm.train ranks" "74 tests.launchers.restart ranks" "27 tests.hosts.cut_off ranks" "27 tests.launchers.mpirun ranks" "25 comm.transport.mpi ranks"
  "22 tests.launchers.data_parallel ranks" "18 tests.launchers.many ranks" "18 tests.launchers.mpi_faults ranks" "14 tests.launchers.ssh ranks"
  "15 tests.cli.shared_model ranks" "13 tests.launchers.mesh ranks" "8 tests.launchers.torchrun ranks" "4 comm.transport.growth ranks" "1 tests.launchers.gpus ranks"
  "103 python.install" "90 comm.algo" "60 ops.attention" "45 ops.softmax" "43 ops.matmul.gemm" "34 comm.watch.processes" "31 comm.watch.injected" "30 parallel.tensor"
  "25 comm.watch" "24 comm.transport.tcp" "20 ops.lm_head_loss" "20 ops.conv2d" "20 tests.cli.interrupt" "20 train.exchanges" "18 train.pipeline_zero"
  "17 train.pipeline" "15 train.pipeline_models" "14 train.pipeline_vocabulary" "17 ops.linear" "16 ops.bias_gelu"
  "16 train.mesh_ranks" "15 tests.cli.demo" "15 io.checkpoint_ranks" "15 ops.matmul" "14 ops.int4_linear" "13 python.errors" "12 infer.shared_engine" "11 tests.cli.contract"
  "11 train.fp8" "11 tests.cli.launch" "11 comm.bootstrap.rendezvous" "10 comm.algo.reach" "10 ops.layer_norm" "10 ops.norm_swiglu" "9 ops.attention.far_scores"
  "9 ops.norm_qkv" "9 tests.layering" "7 tests.format")

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
