#include "hpcdl/comm/bootstrap/join.h"

#include "hpcdl/comm/transport/mpi.h"
#include "hpcdl/comm/transport/tcp.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/core/error.h"

namespace hpcdl::comm {

namespace {

/// Whether MPI_Init would find the other ranks.
bool started_by_mpi(const Place& p) {
  if (p.source == "Open MPI" || p.source == "Hydra" || p.source == "MVAPICH" || p.source == "PALS") return true;
  return p.source == "Slurm" && process_environment().contains("PMIX_RANK");  // srun --mpi=pmix
}

bool use_mpi(const Place& p, const std::string& transport) {
  if (transport == "auto") return has_mpi() && started_by_mpi(p);
  if (transport != "mpi" && transport != "tcp")
    fail_usage("dist", "dist.transport is \"{}\"; expected auto, mpi or tcp", transport);
  if (transport == "mpi" && !has_mpi())
    fail_usage("dist",
               "dist.transport = \"mpi\", but this build has no MPI: build on a machine with mpicc, or use tcp");
  return transport == "mpi";
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

void Joined::fail(std::string_view why) {
  if (watch_) watch_->fail(why);
}

void Joined::close() {
  if (!watch_) return;
  world_.close();  // while the watchdog still runs
  watch_->close();
  store_->close(Clock::now() + std::chrono::seconds(30));
}

Joined join(const Place& place, const JoinOptions& options) {
  Joined j;
  j.place_ = place;
  const bool mpi = use_mpi(place, options.transport);
  if (place.world == 1) return j;
  std::unique_ptr<Transport> transport;
  if (mpi) {
    transport = mpi_transport({.timeout = options.init_timeout,
                               .late = options.leave,
                               .asked_to_stop = options.asked_to_stop,
                               .leave_asked = options.leave_asked});
    if (transport->rank() != place.rank || transport->size() != place.world)
      fail_usage("dist",
                 "MPI says rank {} of {}, but this is {}: start all ranks with one mpirun of the MPI that this was "
                 "built with, or use dist.transport = \"tcp\"",
                 transport->rank(), transport->size(), describe(place));
  }
  const auto timeout = milliseconds(options.init_timeout);
  RendezvousOptions meet{
      .method = options.method, .timeout = timeout, .asked_to_stop = options.asked_to_stop, .say = options.say};
  if (mpi) meet.broadcast = mpi_broadcast;
  j.store_ = open_store(place, meet);
  j.place_ = with_local_rank(place, *j.store_);
  j.watch_ = std::make_shared<Watch>(store_channel(j.store_),
                                     WatchOptions{.program = options.program, .leave = options.leave});
  if (!transport) transport = tcp_transport(j.store_, Clock::now() + timeout);
  j.world_ = make_world(std::move(transport), {.deadline_seconds = options.timeout, .on_lost = j.watch_->on_lost()});
  j.watch_->guard(j.world_);
  return j;
}

}  // namespace hpcdl::comm
