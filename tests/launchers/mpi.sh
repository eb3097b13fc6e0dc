# The mpirun of the MPI that the program was built with (HPCDL_MPIRUN, which CTest sets), for more ranks than there are cores: source it after
# small_run.sh. Leaves the command in $mpirun, and in $starter the name by which `hpcdl` calls it. Ends with 77 if there is none.
mpirun=("${HPCDL_MPIRUN:-mpirun}")
version=$("${mpirun[@]}" --version 2>/dev/null) || skip "no mpirun (openmpi-bin or mpich)"
starter=Hydra  # MPICH, Intel MPI
if [[ $version == *"Open MPI"* ]]; then
  starter="Open MPI"
  mpirun+=(--oversubscribe --bind-to none)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
