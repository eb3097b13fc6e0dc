# MPI, if it is installed: one more transport. Open MPI or MPICH, depending on mpicc; -DMPI_C_COMPILER=mpicc.mpich
# selects the other.
set(HPCDL_MPI AUTO CACHE STRING "Build the MPI transport: ON, OFF, or AUTO, where mpicc is")
if(HPCDL_MPI STREQUAL AUTO AND SKBUILD)
  set(HPCDL_MPI OFF)  # a wheel runs on machines without it
endif()
if(HPCDL_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    # The mpirun of the MPI that is linked: mpirun.mpich next to mpicc.mpich. FindMPI would take the first mpiexec that
    # it finds.
    set(mpirun mpirun)
    if(MPI_C_COMPILER MATCHES "/mpi+cc([^/]*)$")
      set(mpirun mpirun${CMAKE_MATCH_1})
    endif()
    cmake_path(GET MPI_C_COMPILER PARENT_PATH folder)
    find_program(HPCDL_MPIRUN NAMES ${mpirun} mpirun HINTS "${folder}" NO_CACHE)
  endif()
  if(NOT MPI_C_FOUND AND NOT HPCDL_MPI STREQUAL AUTO)
    message(FATAL_ERROR "HPCDL_MPI=${HPCDL_MPI}, but there is no MPI: apt-get install libopenmpi-dev openmpi-bin, or libmpich-dev mpich")
  endif()
endif()

# What find_package(hpcdl) looks for: "mpi" of /usr/lib/.../libmpi.so.
set(hpcdl_mpi_names)
if(MPI_C_FOUND)
  foreach(library IN LISTS MPI_C_LIBRARIES)
    cmake_path(GET library STEM name)
    string(REGEX REPLACE "^lib" "" name ${name})
    list(APPEND hpcdl_mpi_names ${name})
  endforeach()
endif()

# Links MPI to the library; only one file includes its headers.
function(hpcdl_link_mpi file)
  if(NOT MPI_C_FOUND)
    return()
  endif()
  # The installed package finds the library by its name (hpcdlConfig.cmake.in): another machine has it elsewhere.
  foreach(library IN LISTS MPI_C_LIBRARIES)
    target_link_libraries(hpcdl PRIVATE $<BUILD_INTERFACE:${library}>)
  endforeach()
  target_link_libraries(hpcdl PRIVATE $<INSTALL_INTERFACE:hpcdl::mpi>)
  set_source_files_properties(${file} TARGET_DIRECTORY hpcdl PROPERTIES
    COMPILE_DEFINITIONS "HPCDL_MPI=1;OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX" INCLUDE_DIRECTORIES "${MPI_C_INCLUDE_DIRS}")
endfunction()

# The test starts ranks with the mpirun of the MPI that was linked.
function(hpcdl_tells_mpirun test)
  if(HPCDL_MPIRUN)
    set_tests_properties(${test} PROPERTIES ENVIRONMENT "HPCDL_MPIRUN=${HPCDL_MPIRUN}")
  endif()
endfunction()
