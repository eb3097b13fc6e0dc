#include "hpcdl/comm/transport/mpi.h"

#if HPCDL_MPI

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/comm/dispatch.h"
#include "hpcdl/comm/transport/host.h"

#ifdef __SANITIZE_THREAD__
/// Open MPI takes locks of its TCP links in two orders while MPI_Init_thread() runs. Not our error.
extern "C" const char* __tsan_default_suppressions() { return "deadlock:mca_btl_tcp\n"; }
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
/// Leaks of Open MPI's own threads. Not our error.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:/mca_\nleak:libmpi.so\nleak:libopen-pal.so\nleak:libopen-rte.so\nleak:libpmix.so\n";
}
#endif

namespace hpcdl::comm {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;  // bytes of one MPI message: its counts are int

std::atomic<bool> healthy = true;  // this rank has not given up, and no peer is lost
std::atomic<bool> torn = false;    // a message was cancelled under way: MPI can no longer be finalized

void check_mpi(int code, std::string_view what, int peer = -1) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int n = 0, kind = 0;
  MPI_Error_string(code, text, &n);
  MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_TRUNCATE)
    throw PeerLost("a message has another size than expected: the ranks make different calls", peer);
  throw PeerLost(fmt::format("{}: {}", what, text), peer);
}

/// Whether all ranks reach their ends: only then MPI_Finalize() ends, too.
bool all_leave(std::chrono::seconds patience) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
  for (const Deadline deadline = Clock::now() + patience;;) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done || Clock::now() >= deadline) return done != 0;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// Ranks that end by an error, their own or that of another, finalize MPI as well if all of them reach it:
/// to its launcher, a rank that ends without it has crashed, and it kills the others before they have printed their
/// say.
void finish_mpi() {
  int finished = 0;
  MPI_Finalized(&finished);
  if (finished || torn || !all_leave(std::chrono::seconds(healthy ? 60 : 3))) return;
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();  // now: MPI_Finalize() unloads plug-ins, and then their leaks have no names
#endif
  MPI_Finalize();
}

void start_mpi() {
  int running = 0, level = MPI_THREAD_SINGLE, finished = 0;
  MPI_Finalized(&finished);
  require(!finished, "comm", "MPI was finalized in this process, and cannot be started again");
  MPI_Initialized(&running);
  if (running) {
    MPI_Query_thread(&level);
  } else {
#ifdef __SANITIZE_ADDRESS__
    const __lsan::ScopedDisabler its_own;  // by plug-ins that it unloads at once, too
#endif
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    std::atexit(finish_mpi);
  }
  require(level >= MPI_THREAD_SERIALIZED, "comm",
          "this MPI may be called by one thread only, but collectives run on a thread of their own: use an MPI with "
          "MPI_THREAD_SERIALIZED");
}

MPI_Datatype type_of(DType d) {
  switch (d) {
    case DType::f32: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::i16: return MPI_INT16_T;
    case DType::i8: return MPI_INT8_T;
    case DType::u64: return MPI_UINT64_T;
    case DType::u32: return MPI_UINT32_T;
    case DType::u16: return MPI_UINT16_T;
    case DType::u8: return MPI_UINT8_T;
    default: fail("comm", "MPI cannot sum {}: choose another algorithm than native", dtype_name(d));
  }
}

class MpiNative : public Transport::Native {
 public:
  MpiNative(MPI_Comm world, std::span<const int> ranks, int tag) {
    MPI_Group all, some;
    MPI_Comm_group(world, &all);
    MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
    const int code = MPI_Comm_create_group(world, some, tag, &comm_);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    check_mpi(code, "MPI_Comm_create_group");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_size(comm_, &size_);
    MPI_Comm_rank(comm_, &rank_);
  }
  ~MpiNative() override {
    int finished = 0;
    MPI_Finalized(&finished);
    if (!finished && healthy) MPI_Comm_free(&comm_);
  }

  void start(const Call& c) override {
    const bool reduces = c.what == Collective::all_reduce || c.what == Collective::reduce_scatter;
    const std::int64_t units = reduces ? c.count : c.bytes();
    require(units <= 0x7fffffff, "comm", "native {}: {} elements are more than a call of MPI takes",
            collective_name(c.what), units);
    const int n = static_cast<int>(units);
    const MPI_Op op = c.op == Reduce::max ? MPI_MAX : MPI_SUM;
    const bool in_place_scatter = c.out == c.in + rank_ * c.bytes(),
               in_place_gather = c.in == c.out + rank_ * c.bytes();
    switch (c.what) {
      case Collective::all_reduce:
        check_mpi(MPI_Allreduce(MPI_IN_PLACE, c.out, n, type_of(c.dtype), op, comm_), "MPI_Allreduce");
        break;
      case Collective::reduce_scatter: scatter(c, n, op, in_place_scatter); break;
      case Collective::all_gather:
        check_mpi(MPI_Allgather(in_place_gather ? MPI_IN_PLACE : c.in, n, MPI_BYTE, c.out, n, MPI_BYTE, comm_),
                  "MPI_Allgather");
        break;
      case Collective::all_to_all:
        check_mpi(MPI_Alltoall(c.in, n, MPI_BYTE, c.out, n, MPI_BYTE, comm_), "MPI_Alltoall");
        break;
      case Collective::broadcast: check_mpi(MPI_Bcast(c.out, n, MPI_BYTE, c.peer, comm_), "MPI_Bcast"); break;
      case Collective::barrier: check_mpi(MPI_Barrier(comm_), "MPI_Barrier"); break;
      default: fail("comm", "MPI has no native {} for a group", collective_name(c.what));
    }
    if (reduces && c.op == Reduce::avg) divide(c);
  }
  bool done() override { return true; }

 private:
  /// The in-place form of MPI leaves the result at the start of the input, where other parts belong.
  void scatter(const Call& c, int n, MPI_Op op, bool in_place) {
    std::byte* out = c.out;
    if (in_place) {
      if (copy_.bytes() < c.bytes()) copy_ = Buffer(c.bytes());
      out = copy_.data();
    }
    check_mpi(MPI_Reduce_scatter_block(c.in, out, n, type_of(c.dtype), op, comm_), "MPI_Reduce_scatter_block");
    if (in_place) std::copy_n(out, c.bytes(), c.out);
  }

  void divide(const Call& c) {
    if (c.dtype == DType::f32)
      for (std::int64_t i = 0; i < c.count; ++i) reinterpret_cast<float*>(c.out)[i] /= static_cast<float>(size_);
    else
      for (std::int64_t i = 0; i < c.count; ++i) reinterpret_cast<double*>(c.out)[i] /= static_cast<double>(size_);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int size_ = 0, rank_ = 0;
  Buffer copy_;
};

/// Watches the start of MPI until it is destroyed.
class Alarm {
 public:
  explicit Alarm(const MpiStart& start) : start_(start) {
    if ((start_.timeout > 0 && start_.late) || (start_.asked_to_stop && start_.leave_asked))
      thread_ = std::thread([this] { look_on(); });
  }
  ~Alarm() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    over_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  void look_on() {
    const bool ends = start_.timeout > 0 && start_.late;
    const auto end = Clock::now() + std::chrono::duration<double>(start_.timeout);
    for (std::unique_lock lock(mutex_); !over_.wait_for(lock, kAsk, [&] { return stop_; });) {
      if (start_.asked_to_stop && start_.leave_asked && start_.asked_to_stop())
        return start_.leave_asked("[dist] asked to stop before all ranks of MPI had started: nothing was started");
      if (ends && Clock::now() >= end)
        return start_.late(
            fmt::format("[dist] MPI has not started in {:.3g} s: some of its ranks have not come "
                        "(dist.init_timeout)",
                        start_.timeout));
    }
  }

  static constexpr auto kAsk = std::chrono::milliseconds(100);
  const MpiStart& start_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool stop_ = false;
  std::thread thread_;
};

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(const MpiStart& start) {
    const Alarm alarm(start);
    start_mpi();
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, &bound, &found);
    if (found) largest_tag_ = static_cast<std::uint32_t>(*static_cast<int*>(bound));
    meet_hosts();
  }
  ~MpiTransport() override {
    withdraw();
    int finished = 0;
    MPI_Finalized(&finished);
    if (!finished && healthy) MPI_Comm_free(&comm_);
  }

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int host(int rank) const override { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string host_name(int rank) const override { return host_names_[static_cast<std::size_t>(rank)]; }

  Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) override {
    return start(to, bytes.size(), [&](std::size_t at, int n, MPI_Request* r) {
      return MPI_Isend(bytes.data() + at, n, MPI_BYTE, to, fold(tag), comm_, r);
    });
  }
  Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) override {
    return start(
        from, bytes.size(),
        [&](std::size_t at, int n, MPI_Request* r) {
          return MPI_Irecv(bytes.data() + at, n, MPI_BYTE, from, fold(tag), comm_, r);
        },
        true);
  }

  bool done(Pending& pending) override {
    if (pending.id == 0) return true;
    Slot& slot = slots_[pending.id - 1];
    while (slot.next < slot.requests.size()) {
      int flag = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&slot.requests[slot.next], &flag, &status), "MPI_Test", pending.peer);
      if (!flag) return false;
      check_size(slot, status, pending.peer);
      ++slot.next;
    }
    release(pending);
    return true;
  }

  void cancel(Pending& pending) override {
    if (pending.id == 0) return;
    drop(slots_[pending.id - 1]);
    release(pending);
  }

  void withdraw() override {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Pending p{.id = i + 1, .peer = -1};
      if (slots_[i].used) cancel(p);
    }
  }

  void check(int) override {}
  void nap(std::chrono::microseconds at_most) override {
    int flag = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &flag, &status);  // lets messages advance
    std::this_thread::sleep_for(std::min(at_most, std::chrono::microseconds(100)));
  }
  void leave(std::string_view) noexcept override { healthy = false; }

  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes,
                                Deadline deadline) override {
    return share_memory(*this, ranks, tag, bytes, deadline);
  }
  std::unique_ptr<Native> native(std::span<const int> ranks, std::uint32_t tag) override {
    return std::make_unique<MpiNative>(comm_, ranks, fold(tag));
  }

 private:
  struct Slot {
    std::vector<MPI_Request> requests;  // keeps its capacity
    std::size_t next = 0;               // the first that is not done
    std::size_t bytes = 0;
    bool used = false, receives = false;
  };

  int fold(std::uint32_t tag) const { return static_cast<int>(tag <= largest_tag_ ? tag : tag % largest_tag_); }

  template <class F> Pending start(int peer, std::size_t bytes, F&& begin, bool receives = false) {
    if (free_.empty()) {
      free_.push_back(slots_.size());
      slots_.emplace_back();
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.requests.clear();
    slot.next = 0;
    slot.bytes = bytes;
    slot.used = true;
    slot.receives = receives;
    std::size_t at = 0;
    do {
      const std::size_t n = std::min(kLargest, bytes - at);
      slot.requests.push_back(MPI_REQUEST_NULL);
      check_mpi(begin(at, static_cast<int>(n), &slot.requests.back()), "a message", peer);
      at += n;
    } while (at < bytes);
    return {.id = index + 1, .peer = peer};
  }

  void check_size(const Slot& slot, MPI_Status& status, int peer) const {
    if (!slot.receives) return;
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    const std::size_t expected = std::min(kLargest, slot.bytes - slot.next * kLargest);
    if (static_cast<std::size_t>(n) != expected)
      throw PeerLost("a message has another size than expected: the ranks make different calls", peer);
  }

  void release(Pending& pending) {
    slots_[pending.id - 1].used = false;
    free_.push_back(static_cast<std::size_t>(pending.id - 1));
    pending.id = 0;
  }

  /// A receive can be cancelled. A send cannot (MPI has deprecated that): its bytes may still be read, but nothing is
  /// written.
  void drop(Slot& slot) {
    for (; slot.next < slot.requests.size(); ++slot.next) {
      MPI_Request& r = slot.requests[slot.next];
      if (r == MPI_REQUEST_NULL) continue;
      torn = true;
      if (slot.receives) MPI_Cancel(&r);
      MPI_Request_free(&r);
    }
  }

  void meet_hosts() {
    struct Host {
      char key[320], name[256];
    } mine{};
    host_key().copy(mine.key, sizeof mine.key - 1);
    comm::host_name().copy(mine.name, sizeof mine.name - 1);
    std::vector<Host> all(static_cast<std::size_t>(size_));
    check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm_), "MPI_Allgather");
    std::vector<std::string> keys;
    for (const Host& h : all) {
      keys.emplace_back(h.key);
      host_names_.emplace_back(h.name);
    }
    hosts_ = number_hosts(keys);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::uint32_t largest_tag_ = 32767;
  std::vector<int> hosts_;
  std::vector<std::string> host_names_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
};

}  // namespace

bool has_mpi() { return true; }

std::unique_ptr<Transport> mpi_transport(const MpiStart& start) { return std::make_unique<MpiTransport>(start); }

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int n = 0;
  if (MPI_Get_library_version(text, &n) != MPI_SUCCESS) return "";
  // "Open MPI v4.1.4, package: ..."; "MPICH Version:\t4.0.2\nMPICH Release date: ..."; "Intel(R) MPI Library 2021.8 for
  // Linux".
  const std::string all(text, static_cast<std::size_t>(n));
  const auto digit = all.find_first_of("0123456789");
  const auto end = all.find_first_not_of("0123456789.", digit);
  const char* name = all.starts_with("Open MPI")  ? "Open MPI"
                     : all.starts_with("MPICH")   ? "MPICH"
                     : all.starts_with("Intel")   ? "Intel MPI"
                     : all.starts_with("MVAPICH") ? "MVAPICH"
                                                  : "MPI";
  return digit == std::string::npos ? name : fmt::format("{} {}", name, all.substr(digit, end - digit));
}

std::string mpi_broadcast(const std::string& text) {
  start_mpi();
  int size = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&size, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
  std::string out = text;
  out.resize(static_cast<std::size_t>(size));
  check_mpi(MPI_Bcast(out.data(), size, MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
  return out;
}

}  // namespace hpcdl::comm

#else

namespace hpcdl::comm {

bool has_mpi() { return false; }

std::string mpi_library() { return ""; }

std::unique_ptr<Transport> mpi_transport(const MpiStart&) {
  fail_usage("comm",
             "this build has no MPI: configure it on a machine with mpicc (apt-get install libopenmpi-dev), or start "
             "with hpcdl "
             "launch or torchrun");
}

std::string mpi_broadcast(const std::string&) {
  mpi_transport();
  return {};
}

}  // namespace hpcdl::comm

#endif
