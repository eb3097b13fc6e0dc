#include "hpcdl/comm/bootstrap/rendezvous.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "hpcdl/comm/bootstrap/secret.h"
#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/comm/bootstrap/store_server.h"

namespace hpcdl::comm {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kPause = 50ms;  // first pause between rounds of attempts
constexpr auto kLongestPause = 1000ms;
constexpr auto kConnect = 2000ms;  // for one attempt

struct Address {
  std::string host;
  int port;
};

/// What rank 0 sends to the others outside of TCP: token and addresses, one per line.
struct Invitation {
  std::string token;
  std::vector<Address> addresses;

  std::string text() const {
    std::string t = "hpcdl " + token + "\n";
    for (const auto& a : addresses) t += a.host + " " + std::to_string(a.port) + "\n";
    return t + "end\n";
  }
  /// Without addresses if the text is not complete.
  static Invitation parse(const std::string& text) {
    std::istringstream in(text);
    std::string word, host;
    Invitation i;
    if (!(in >> word >> i.token) || word != "hpcdl") return {};
    for (int port; in >> host && host != "end" && in >> port;) i.addresses.push_back({host, port});
    return host == "end" ? i : Invitation{};
  }
};

/// A method with all that it needs.
struct Plan {
  enum class Kind { tcp, file, mpi } kind;
  std::string host;  // tcp
  int port = 0, ports = 1;
  std::string token;
  fs::path file;
  std::string secret;

  RunKey key(const std::string& run_token) const { return {run_token, secret}; }
};

/// Name of this launch, so that several launches of one job or user do not meet.
std::string run_name(const Place& p) {
  const auto name = p.run_id.empty() ? fmt::format("launcher-{}", getppid()) : p.run_id;
  std::string safe;
  for (const char c : name) safe += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  return safe;
}

Plan tcp_plan(const Place& p, std::string host, int port, int ports) {
  if (port == 0)
    fail_usage("dist", "{} needs a port that the other ranks know: give HOST:PORT with a port above 0", host);
  return {Plan::Kind::tcp, std::move(host), port, ports, "hpcdl " + p.run_id, {}, {}};
}

/// A private folder of this user within one that all users share.
fs::path own_folder(const fs::path& shared) {
  const fs::path folder = shared / fmt::format("hpcdl-{}", geteuid());
  const bool made = ::mkdir(folder.c_str(), 0700) == 0;
  require(made || errno == EEXIST, "dist", "cannot make the folder {}: {}", folder.string(), std::strerror(errno));
  struct stat s{};
  if (::lstat(folder.c_str(), &s) != 0 || !S_ISDIR(s.st_mode) || s.st_uid != geteuid() || (s.st_mode & 077))
    fail_usage("dist",
               "{} is not a folder of this user that others cannot enter: remove it, or set TMPDIR to a folder of your "
               "own",
               folder.string());
  return folder;
}

Plan file_plan(const Place& p, const std::string& path) {
  const fs::path file = path + "." + run_name(p);
  if (!fs::is_directory(file.parent_path()))
    fail_usage("dist", "file://{}: {} is not a folder; give one that all hosts see", path, file.parent_path().string());
  return {Plan::Kind::file, {}, 0, 1, {}, file, {}};
}

Plan make_plan(const Place& p, const RendezvousOptions& o) {
  const std::string& m = o.method;
  if (m.starts_with("tcp://")) {
    const auto [host, port] = split_address(m.substr(6));
    return tcp_plan(p, host, port, 1);
  }
  if (m.starts_with("file://")) {
    Place named = p;  // ranks that were started by hand, or by one launcher per host, have only PATH in common
    if (named.run_id.empty()) named.run_id = "run";
    return file_plan(named, fs::absolute(m.substr(7)).string());
  }
  if (m == "mpi") {
    if (!o.broadcast)
      fail_usage("dist",
                 "dist.method = \"mpi\" needs a build with MPI and a launch by mpirun or srun --mpi=pmix; this is {}",
                 describe(p));
    return {Plan::Kind::mpi, {}, 0, 1, {}, {}, {}};
  }
  if (m != "env" && m != "auto")
    fail_usage("dist", "dist.method is \"{}\"; expected auto, env, mpi, tcp://HOST:PORT or file://PATH", m);
  // A launch without a name is identified by its parent process, which a script around each rank would hide: if MPI can
  // give the address, it is used.
  if (m == "auto" && p.run_id.empty() && o.broadcast) return {Plan::Kind::mpi, {}, 0, 1, {}, {}, {}};
  if (m == "auto" && p.one_host() && (p.master_host.empty() || p.source != "options")) {
    const char* temporary = std::getenv("TMPDIR");
    std::error_code none;  // it may be a folder of the host that submitted the job
    const fs::path folder = temporary && fs::is_directory(temporary, none) ? temporary : "/tmp";
    return file_plan(p, (own_folder(folder) / "store").string());
  }
  if (!p.master_host.empty()) return tcp_plan(p, p.master_host, p.master_port, p.ports);
  if (m == "auto" && o.broadcast) return {Plan::Kind::mpi, {}, 0, 1, {}, {}, {}};
  fail_usage("dist",
             "{} does not say where rank 0 is: give --dist.method tcp://HOST:PORT or file://PATH in a folder that all "
             "hosts see, or set MASTER_ADDR and MASTER_PORT",
             describe(p));
}

/// Only this user may read it, because it holds the token. Never through a link that another user left there.
void write_invitation(const fs::path& file, const std::string& text) {
  const fs::path temporary = file.string() + ".new." + std::to_string(getpid());
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  require(fd >= 0, "dist", "cannot write {}: {}", temporary.string(), std::strerror(errno));
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  const bool placed = written && std::rename(temporary.c_str(), file.c_str()) == 0;
  require(placed, "dist", "cannot write {}: {}", file.string(), std::strerror(errno));
}

/// Without addresses, and `why`, if there is none that can be trusted. With a secret rank 0 itself has to prove
/// that it is the right one; without a secret, a file that another user may have written is not read.
Invitation read_invitation(const Plan& plan, std::string& why) {
  constexpr std::size_t kLongest = 1 << 16;  // bytes
  struct File {
    int fd;
    ~File() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(plan.file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  struct stat s{};
  if (file.fd < 0 || fstat(file.fd, &s) != 0 || !S_ISREG(s.st_mode)) return {};
  if (plan.secret.empty() && (s.st_uid != geteuid() || (s.st_mode & 022))) {
    why = fmt::format("{} can be written by another user, so it is not trusted", plan.file.string());
    return {};
  }
  std::string text(kLongest, '\0');
  const auto n = ::read(file.fd, text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return Invitation::parse(text);
}

bool is_own_address(const std::string& host) {
  const auto own = own_addresses();
  return is_loopback(host) || std::find(own.begin(), own.end(), host) != own.end();
}

/// The address that rank 0 listens at; empty: all of this host. Names are not resolved: other hosts may resolve them to
/// another address.
std::string listening_host(const Plan& plan, const Place& p) {
  if (p.one_host()) return "127.0.0.1";
  if (plan.kind != Plan::Kind::tcp) return {};
  if (plan.host == "localhost") return "127.0.0.1";
  return is_own_address(plan.host) ? plan.host : std::string();
}

Socket listen_for(const Plan& plan, const std::string& host) {
  if (plan.kind != Plan::Kind::tcp) return listen_at(host, 0);
  for (int i = 0; i < plan.ports; ++i)
    if (Socket s = listen_at(host, std::min(plan.port + i, 65535))) return s;
  fail("dist", "port {}{} of this host is taken: give another one (MASTER_PORT, or --dist.method tcp://HOST:PORT)",
       plan.port, plan.ports > 1 ? fmt::format(" to {}", plan.port + plan.ports - 1) : "");
}

/// Warns if only a token that could be guessed protects a port that other hosts reach.
void warn_of_strangers(const Plan& plan, const std::string& host, const RendezvousOptions& o) {
  if (plan.kind != Plan::Kind::tcp || !plan.secret.empty() || is_loopback(host) || !o.say) return;
  o.say(
      "this job has no secret, so any program that reaches rank 0's port can join it; give all ranks the same "
      "HPCDL_SECRET, or an HPCDL_SECRET_FILE");
}

std::shared_ptr<Store> serve(const Place& p, const Plan& plan, const RendezvousOptions& o, Deadline deadline) {
  Invitation invitation{plan.token, {}};
  if (invitation.token.empty()) invitation.token = hexadecimal(random_bytes(16));
  const std::string host = listening_host(plan, p);
  Socket listening = listen_for(plan, host);
  const int port = port_of(listening);
  for (const auto& address : host.empty() ? own_addresses() : std::vector<std::string>{host})
    invitation.addresses.push_back({address, port});
  const RunKey key = plan.key(invitation.token);
  if (p.world > 1) warn_of_strangers(plan, host, o);
  auto server =
      std::make_unique<StoreServer>(std::move(listening), ServerOptions{p.world, key, deadline, p.hosts, o.say});
  if (plan.kind == Plan::Kind::mpi) o.broadcast(invitation.text());
  struct Written {
    fs::path file;
    ~Written() {
      if (!file.empty()) ::unlink(file.c_str());
    }
  } written;
  if (plan.kind == Plan::Kind::file && p.world > 1) {
    write_invitation(plan.file, invitation.text());
    written.file = plan.file;
  }
  std::string why;
  Socket own = connect_to(host.empty() ? "127.0.0.1" : host, port, kConnect, why);
  require(static_cast<bool>(own), "dist", "rank 0 cannot reach its own store: {}", why);
  auto store = Store::introduce(std::move(own), 0, p.world, key, deadline, std::move(server), o.asked_to_stop);
  require(store != nullptr, "dist", "rank 0's own store does not answer");
  return store;
}

std::string where(const Plan& plan) {
  return plan.kind == Plan::Kind::file  ? plan.file.string()
         : plan.kind == Plan::Kind::tcp ? fmt::format("{}:{}", plan.host, plan.port)
                                        : "the address that MPI gave";
}

std::shared_ptr<Store> join(const Place& p, const Plan& plan, const RendezvousOptions& o, Deadline deadline) {
  Invitation invitation{plan.token, {}};
  for (int i = 0; plan.kind == Plan::Kind::tcp && i < plan.ports; ++i)
    invitation.addresses.push_back({p.one_host() ? "127.0.0.1" : plan.host, std::min(plan.port + i, 65535)});
  if (plan.kind == Plan::Kind::mpi) invitation = Invitation::parse(o.broadcast(""));
  const auto leave_if_asked = [&] {
    if (o.asked_to_stop && o.asked_to_stop())
      throw Stopped(fmt::format("[dist] rank {} on {} was asked to stop before it reached rank 0: nothing was started",
                                p.rank, host_name()));
  };
  const double patience = std::chrono::duration<double>(o.timeout).count();
  std::string why = "nothing listens there yet";
  bool told = !o.say;
  const auto tell_at = Clock::now() + o.silent;
  for (std::chrono::milliseconds pause = kPause; Clock::now() < deadline;
       pause = std::min(pause * 3 / 2, kLongestPause)) {
    if (plan.kind == Plan::Kind::file)
      invitation = read_invitation(plan, why);  // repeatedly: a stale address is replaced
    for (const auto& a : invitation.addresses) {
      leave_if_asked();
      Socket s = connect_to(a.host, a.port, kConnect, why);
      if (!s) continue;
      auto store = Store::introduce(std::move(s), p.rank, p.world, plan.key(invitation.token), deadline, nullptr,
                                    o.asked_to_stop);
      if (store) return store;
      why = fmt::format("{}:{}: not the store of this launch", a.host, a.port);
    }
    if (!told && Clock::now() >= tell_at) {
      told = true;
      o.say(fmt::format(
          "rank {} on {} waits for rank 0 at {}: it has not started yet, or has already ended ({}); dist.init_timeout "
          "ends this after {} s",
          p.rank, host_name(), where(plan), why, patience));
    }
    for (const auto until = std::min<Deadline>(Clock::now() + pause, deadline); Clock::now() < until;
         std::this_thread::sleep_for(std::min<Clock::duration>(Store::kAsk, until - Clock::now())))
      leave_if_asked();
  }
  throw PeerLost(fmt::format("[dist] rank {} on {} did not reach rank 0 at {} within {} s: {}", p.rank, host_name(),
                             where(plan), patience, why));
}

}  // namespace

std::shared_ptr<Store> open_store(const Place& place, const RendezvousOptions& options) {
  Plan plan = make_plan(place, options);
  plan.secret = options.secret ? *options.secret : job_secret();
  const auto deadline = Clock::now() + options.timeout;
  return place.rank == 0 ? serve(place, plan, options, deadline) : join(place, plan, options, deadline);
}

Place with_local_rank(Place place, const Store& store) {
  if (place.local_rank >= 0 && place.local_world > 0) return place;
  const auto& hosts = store.hosts();
  const auto& own = hosts[static_cast<std::size_t>(place.rank)];
  place.local_world = static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
  place.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + place.rank, own));
  return place;
}

}  // namespace hpcdl::comm
