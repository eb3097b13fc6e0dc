#include "hpcdl/comm/bootstrap/rendezvous.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/comm/bootstrap/store_server.h"

namespace hpcdl::comm {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kPause = 50ms;  // between rounds of attempts, at first
constexpr auto kLongestPause = 1000ms;
constexpr auto kConnect = 2000ms;  // for one attempt

struct Address {
  std::string host;
  int port;
};

/// What rank 0 tells the others outside of TCP: token and addresses, a line each.
struct Invitation {
  std::string token;
  std::vector<Address> addresses;

  std::string text() const {
    std::string t = "hpcdl " + token + "\n";
    for (const auto& a : addresses) t += a.host + " " + std::to_string(a.port) + "\n";
    return t + "end\n";
  }
  /// Without addresses when the text is not whole.
  static Invitation parse(const std::string& text) {
    std::istringstream in(text);
    std::string word, host;
    Invitation i;
    if (!(in >> word >> i.token) || word != "hpcdl") return {};
    for (int port; in >> host && host != "end" && in >> port;) i.addresses.push_back({host, port});
    return host == "end" ? i : Invitation{};
  }
};

std::string random_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// A method once what it needs is known.
struct Plan {
  enum class Kind { tcp, file, mpi } kind;
  std::string host;  // tcp
  int port = 0, ports = 1;
  std::string token;
  fs::path file;
};

/// Of this launch: several of one job or user do not meet.
std::string run_name(const Place& p) {
  const auto name = p.run_id.empty() ? fmt::format("launcher-{}", getppid()) : p.run_id;
  std::string safe;
  for (const char c : name) safe += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  return safe;
}

Plan tcp_plan(const Place& p, std::string host, int port, int ports) {
  if (port == 0) fail_usage("dist", "{} needs a port: the other ranks have to know it", host);
  return {Plan::Kind::tcp, std::move(host), port, ports, "hpcdl " + p.run_id, {}};
}

Plan file_plan(const Place& p, const std::string& path) {
  const fs::path file = path + "." + run_name(p);
  if (!fs::is_directory(file.parent_path()))
    fail_usage("dist", "file://{}: {} is no folder; give one that all hosts see", path, file.parent_path().string());
  return {Plan::Kind::file, {}, 0, 1, {}, file};
}

Plan make_plan(const Place& p, const RendezvousOptions& o) {
  const std::string& m = o.method;
  if (m.starts_with("tcp://")) {
    const auto [host, port] = split_address(m.substr(6));
    return tcp_plan(p, host, port, 1);
  }
  if (m.starts_with("file://")) return file_plan(p, fs::absolute(m.substr(7)).string());
  if (m == "mpi") {
    if (!o.broadcast)
      fail_usage("dist",
                 "dist.method = \"mpi\" needs a build with MPI and a launch by mpirun or srun --mpi=pmix; this is {}",
                 describe(p));
    return {Plan::Kind::mpi, {}, 0, 1, {}, {}};
  }
  if (m != "env" && m != "auto")
    fail_usage("dist", "dist.method is \"{}\"; expected auto, env, mpi, tcp://HOST:PORT or file://PATH", m);
  // A launch without a name is known by its parent process, which a script around each rank would hide: where MPI can
  // tell, it does.
  if (m == "auto" && p.run_id.empty() && o.broadcast) return {Plan::Kind::mpi, {}, 0, 1, {}, {}};
  if (m == "auto" && p.one_host() && (p.master_host.empty() || p.source != "options")) {
    const char* temporary = std::getenv("TMPDIR");
    std::error_code none;  // it may name a folder of the host that the job came from
    const fs::path folder = temporary && fs::is_directory(temporary, none) ? temporary : "/tmp";
    return file_plan(p, (folder / fmt::format("hpcdl-store-{}", getuid())).string());
  }
  if (!p.master_host.empty()) return tcp_plan(p, p.master_host, p.master_port, p.ports);
  if (m == "auto" && o.broadcast) return {Plan::Kind::mpi, {}, 0, 1, {}, {}};
  fail_usage("dist",
             "{} does not say where rank 0 is: give --dist.method tcp://HOST:PORT or file://PATH in a folder that all "
             "hosts see, or set MASTER_ADDR and MASTER_PORT",
             describe(p));
}

/// Only this user may read it: the token is in it. Never through a link that somebody else left there.
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

Invitation read_invitation(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return Invitation::parse(text.str());
}

Socket listen_for(const Plan& plan, const Place& p) {
  if (plan.kind == Plan::Kind::tcp) {
    for (int i = 0; i < plan.ports; ++i)
      if (Socket s = listen_at("", std::min(plan.port + i, 65535))) return s;
    fail("dist", "port {}{} of this host is taken: give another one (MASTER_PORT, or --dist.method tcp://HOST:PORT)",
         plan.port, plan.ports > 1 ? fmt::format(" to {}", plan.port + plan.ports - 1) : "");
  }
  return listen_at(p.one_host() ? "127.0.0.1" : "", 0);
}

std::shared_ptr<Store> serve(const Place& p, const Plan& plan, const RendezvousOptions& o, Deadline deadline) {
  Invitation invitation{plan.token, {}};
  if (invitation.token.empty()) invitation.token = random_token();
  Socket listening = listen_for(plan, p);
  const int port = port_of(listening);
  for (const auto& host : p.one_host() ? std::vector<std::string>{"127.0.0.1"} : own_addresses())
    invitation.addresses.push_back({host, port});
  auto server =
      std::make_unique<StoreServer>(std::move(listening), ServerOptions{p.world, invitation.token, deadline, p.hosts});
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
  Socket own = connect_to("127.0.0.1", port, kConnect, why);
  require(static_cast<bool>(own), "dist", "rank 0 cannot reach its own store: {}", why);
  auto store =
      Store::introduce(std::move(own), 0, p.world, invitation.token, deadline, std::move(server), o.asked_to_stop);
  require(store != nullptr, "dist", "rank 0's own store does not answer");
  return store;
}

std::string where(const Plan& plan) {
  return plan.kind == Plan::Kind::file  ? plan.file.string()
         : plan.kind == Plan::Kind::tcp ? fmt::format("{}:{}", plan.host, plan.port)
                                        : "the address that MPI told";
}

std::shared_ptr<Store> join(const Place& p, const Plan& plan, const RendezvousOptions& o, Deadline deadline) {
  Invitation invitation{plan.token, {}};
  for (int i = 0; plan.kind == Plan::Kind::tcp && i < plan.ports; ++i)
    invitation.addresses.push_back({plan.host, std::min(plan.port + i, 65535)});
  if (plan.kind == Plan::Kind::mpi) invitation = Invitation::parse(o.broadcast(""));
  const auto leave_if_asked = [&] {
    if (o.asked_to_stop && o.asked_to_stop())
      throw Stopped(fmt::format("[dist] rank {} on {} was asked to stop before it reached rank 0: nothing was begun",
                                p.rank, host_name()));
  };
  const double patience = std::chrono::duration<double>(o.timeout).count();
  std::string why = "nothing there yet";
  bool told = !o.say;
  const auto tell_at = Clock::now() + o.silent;
  for (std::chrono::milliseconds pause = kPause; Clock::now() < deadline;
       pause = std::min(pause * 3 / 2, kLongestPause)) {
    if (plan.kind == Plan::Kind::file)
      invitation = read_invitation(plan.file);  // again and again: a stale one is replaced
    for (const auto& a : invitation.addresses) {
      leave_if_asked();
      Socket s = connect_to(a.host, a.port, kConnect, why);
      if (!s) continue;
      auto store =
          Store::introduce(std::move(s), p.rank, p.world, invitation.token, deadline, nullptr, o.asked_to_stop);
      if (store) return store;
      why = fmt::format("{}:{}: not the store of this launch", a.host, a.port);
    }
    if (!told && Clock::now() >= tell_at) {
      told = true;
      o.say(fmt::format(
          "rank {} on {} waits for rank 0 at {}: it has not come, or has ended already ({}); dist.init_timeout "
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
  const Plan plan = make_plan(place, options);
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
