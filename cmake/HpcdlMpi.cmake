# MPI, where it is installed: one more transport. Open MPI or MPICH, whichever mpicc is; -DMPI_C_COMPILER=mpicc.mpich picks the other.
set(HPCDL_MPI AUTO CACHE STRING "Build the MPI transport: ON, OFF, or AUTO, where mpicc is")
if(HPCDL_MPI STREQUAL AUTO AND SKBUILD)
  set(HPCDL_MPI OFF)  # a wheel runs on machines without it
endif()
if(HPCDL_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(NOT MPI_C_FOUND AND NOT HPCDL_MPI STREQUAL AUTO)
    message(FATAL_ERROR "HPCDL_MPI=${HPCDL_MPI}, but there is no MPI: apt-get install libopenmpi-dev openmpi-bin, or libmpich-dev mpich")
  endif()
endif()

# Links MPI to the library; one file sees its headers.
function(hpcdl_link_mpi file)
  if(NOT MPI_C_FOUND)
    return()
  endif()
  target_link_libraries(hpcdl PRIVATE ${MPI_C_LIBRARIES})
  set_source_files_properties(${file} TARGET_DIRECTORY hpcdl PROPERTIES
    COMPILE_DEFINITIONS "HPCDL_MPI=1;OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX" INCLUDE_DIRECTORIES "${MPI_C_INCLUDE_DIRS}")
endfunction()
