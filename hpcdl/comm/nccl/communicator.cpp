#if HPCDL_NCCL

#include "hpcdl/comm/nccl/communicator.h"

#include <cstring>
#include <thread>
#include <vector>

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::comm::nccl {
namespace {

constexpr double kFarewell = 10;  // most seconds that an orderly shutdown may take

auto in_seconds(double s) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(s));
}

/// The id of rank 0, on every rank. A rank that cannot take part tells the others, so that none waits for it.
ncclUniqueId shared_id(const HostExchange& host, const Library& library) {
  struct Message {
    ncclUniqueId id;
    int status;
  };
  Message mine{};
  if (host.rank == 0) mine.status = library.get_unique_id(&mine.id);
  std::vector<std::byte> all(sizeof(Message) * static_cast<std::size_t>(host.size));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), all);
  Message first;
  std::memcpy(&first, all.data(), sizeof first);
  require(first.status == ncclSuccess, "comm",
          "NCCL on rank 0 cannot open a socket to meet the others: {} (NCCL_SOCKET_IFNAME names the interface)",
          library.error_string(static_cast<ncclResult_t>(first.status)));
  return first.id;
}

}  // namespace

Communicator::Communicator(const HostExchange& host, Device device)
    : library_(Library::get()), group_(host.name), timeout_(host.timeout) {
  const cuda::OnDevice on(device);
  const auto id = shared_id(host, library_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const auto started = library_.init_rank(&comm, host.size, id, host.rank, &config);
  comm_ = comm;
  auto status = started;
  if (started == ncclInProgress || started == ncclSuccess) status = settled(comm, Clock::now() + in_seconds(timeout_));
  if (status == ncclSuccess) return;
  const std::string why = status == ncclInProgress ? fmt::format("not all of them came within {:.0f} s", timeout_)
                                                   : library_.last_error(comm);
  give_up();
  throw PeerLost(fmt::format(
      "[comm] the {} ranks of group {} cannot connect their GPUs with NCCL: {} (NCCL_DEBUG=INFO tells more)", host.size,
      host.name, why.empty() ? library_.error_string(status) : why));
}

Communicator::~Communicator() {
  const auto comm = comm_.load();
  if (!comm) return;
  auto status = library_.finalize(comm);
  if (status == ncclInProgress) status = settled(comm, Clock::now() + in_seconds(kFarewell));
  if (status == ncclSuccess && comm_.exchange(nullptr)) library_.destroy(comm);
  else give_up();
}

/// ncclInProgress if the deadline passes.
ncclResult_t Communicator::settled(ncclComm_t comm, Clock::time_point deadline) const {
  auto status = ncclInProgress;
  for (int round = 0; comm; ++round) {
    if (const auto asked = library_.async_error(comm, &status); asked != ncclSuccess) return asked;
    if (status != ncclInProgress || Clock::now() > deadline) break;
    if (round < 1000) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return status;
}

ncclComm_t Communicator::handle() const {
  const auto comm = comm_.load();
  if (!comm)
    throw PeerLost(
        fmt::format("[comm] group {} has been given up: a collective between its GPUs failed before", group_));
  return comm;
}

void Communicator::done(ncclResult_t status, const char* call) const {
  const auto comm = handle();
  if (status == ncclInProgress) status = settled(comm, Clock::now() + in_seconds(timeout_));
  if (status == ncclSuccess) return;
  if (status == ncclInProgress)
    throw PeerLost(fmt::format("[comm] group {}: {} between its GPUs could not be started within {:.0f} s", group_,
                               call, timeout_));
  const std::string why = library_.last_error(comm);
  throw PeerLost(fmt::format("[comm] group {}: {} between its GPUs failed: {} {}", group_, call,
                             library_.error_string(status), why));
}

std::optional<std::string> Communicator::error() const {
  const auto comm = comm_.load();
  auto status = ncclSuccess;
  if (!comm) return "its collectives have been given up";
  if (library_.async_error(comm, &status) == ncclSuccess && (status == ncclSuccess || status == ncclInProgress))
    return std::nullopt;
  return fmt::format("NCCL: {} {}", library_.error_string(status), library_.last_error(comm));
}

void Communicator::give_up() noexcept {
  if (const auto comm = comm_.exchange(nullptr)) library_.end(comm);
}

}  // namespace hpcdl::comm::nccl

#endif
