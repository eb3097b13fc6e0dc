#include "cli/hosts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/runner.h"
#include "cli/verb.h"
#include "cli/version.h"
#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/pool.h"

extern char** environ;

namespace hpcdl::cli {

namespace {

constexpr auto kHello = std::chrono::seconds(60);
constexpr std::string_view kGreeting = "hpcdl-agent ";
constexpr int kNoConnection = 255, kNotFound = 127, kNotRun = 126;  // exit codes of ssh and of shells

/// Variables that belong to a host, an account or a session: other hosts have their own values.
bool stays_here(std::string_view name) {
  for (const std::string_view own :
       {"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "TMPDIR",
        "DISPLAY", "XAUTHORITY", "WINDOWID", "INVOCATION_ID"})
    if (name == own) return true;
  for (const std::string_view begin : {"SSH_", "XDG_RUNTIME", "XDG_SESSION", "DBUS_"})
    if (name.starts_with(begin)) return true;
  return false;
}

std::map<std::string, std::string> passed_on() {
  std::map<std::string, std::string> all;
  for (char** e = environ; *e; ++e) {
    const std::string_view entry(*e);
    const auto equals = entry.find('=');
    if (equals != std::string_view::npos && !stays_here(entry.substr(0, equals)))
      all.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return all;
}

/// The address of "user@host".
std::string address_of(const std::string& host) { return host.substr(host.rfind('@') + 1); }

/// What this program knows about a host.
struct Host {
  std::string name;
  int number = 0;
  pid_t pid = -1;
  bool running = true, ready = false;
  int status = 0;  // exit status of ssh, once it has ended
  int error = 0;   // errno: ssh could not be started
  int port = 0;    // free there
  std::string version;
  std::string last_words;  // on ssh's standard error
  io::Fd orders;
  LineReader out{io::Fd()}, err{io::Fd()};
  std::vector<bool> ended;  // by rank of the host
};

class HostsRunner final : public Runner {
 public:
  explicit HostsRunner(const HostsOptions& options) : Runner(options.ranks.grace), options_(options) {}
  ~HostsRunner() override {
    for (auto& h : hosts_)
      if (h->running && h->pid > 0) kill(-h->pid, SIGKILL), waitpid(h->pid, nullptr, 0);
  }

 private:
  void start() override;
  bool running() const override {
    return std::any_of(hosts_.begin(), hosts_.end(), [](const auto& h) { return h->running; });
  }
  void signal_all(int signal) override;
  void reap() override;
  void pump(bool at_end) override;
  void wait_for(std::vector<pollfd>& list) const override {
    for (const auto& h : hosts_)
      for (const LineReader* l : {&h->out, &h->err})
        if (l->open() && !out_.full() && !err_.full()) list.push_back({l->fd(), POLLIN, 0});
  }

  void connect(Host& h);
  void hear_hellos();
  void order(Host& h);
  void hear(Host& h, const std::string& line);
  void hear_rank(Host& h, const std::string& line);
  std::string problem_with(const Host& h) const;
  int rank_of(const Host& h, int local) const { return h.number * options_.ranks.count + local; }

  const HostsOptions& options_;
  std::vector<std::unique_ptr<Host>> hosts_;
  int kills_ = 0;
};

void HostsRunner::start() {
  for (const auto& name : options_.hosts) {
    hosts_.push_back(std::make_unique<Host>());
    Host& h = *hosts_.back();
    h.name = name, h.number = static_cast<int>(hosts_.size()) - 1;
    h.ended.resize(static_cast<std::size_t>(options_.ranks.count));
    connect(h);
  }
  hear_hellos();
  if (result_.asked) {
    for (auto& h : hosts_)
      if (h->ready) h->orders = io::Fd();  // its agent ends
      else kill(-h->pid, SIGTERM);
    result_.ends.push_back({.rank = 0, .code = exit_code::kRequeue, .why = "the ranks were not started yet"});
    return;
  }
  for (auto& h : hosts_) order(*h);
}

void HostsRunner::connect(Host& h) {
  auto [out, out_end] = make_pipe();
  auto [err, err_end] = make_pipe();
  auto [failure, failure_end] = make_pipe();
  auto [in, orders] = make_pipe();
  fcntl(in.get(), F_SETFL, 0);
  std::vector<std::string> words;
  std::istringstream command(options_.ssh);
  for (std::string word; command >> word;) words.push_back(word);
  words.push_back(h.name);
  words.push_back(fmt::format("exec {} launch --agent", quoted(options_.program)));
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  h.pid = fork();
  require(h.pid >= 0, "launch", "cannot start {}: {}", words.front(), std::strerror(errno));
  if (h.pid == 0) {
    setpgid(0, 0);  // signals of the terminal are passed on, and do not end the connection
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    for (const int ignored : {SIGPIPE, SIGXFSZ}) signal(ignored, SIG_DFL);
    dup2(in.get(), STDIN_FILENO), dup2(out_end.get(), STDOUT_FILENO), dup2(err_end.get(), STDERR_FILENO);
    execvp(argv[0], argv.data());
    const int error = errno;
    [[maybe_unused]] const auto n = write(failure_end.get(), &error, sizeof error);
    _exit(kNotFound);
  }
  setpgid(h.pid, h.pid);
  h.orders = std::move(orders), h.out = LineReader(std::move(out)), h.err = LineReader(std::move(err));
  { const io::Fd closed = std::move(failure_end); }
  fcntl(failure.get(), F_SETFL, 0);
  if (read(failure.get(), &h.error, sizeof h.error) == sizeof h.error)
    fail_usage("launch", "cannot run {}: {}; --ssh names another command", words.front(), std::strerror(h.error));
}

/// Waits until the agents of all hosts have answered. Throws for the first that cannot.
void HostsRunner::hear_hellos() {
  const auto until = Clock::now() + kHello;
  for (;;) {
    pump(false);
    read_signals();
    if (result_.asked) return;
    reap();
    for (const auto& h : hosts_)
      if (!h->ready && !h->running) pump(true), fail_usage("launch", "{}", problem_with(*h));
    for (const auto& h : hosts_)
      if (h->ready && h->version != version())
        fail_usage("launch",
                   "host {} has another version of this program: {} there and {} here; install the same on all "
                   "hosts",
                   h->name, h->version, version());
    const auto waits = std::find_if(hosts_.begin(), hosts_.end(), [](const auto& h) { return !h->ready; });
    if (waits == hosts_.end()) return;
    if (Clock::now() >= until)
      fail_usage("launch", "host {} has not answered within {} s{}", (*waits)->name, kHello.count(),
                 (*waits)->last_words.empty() ? "" : ": " + (*waits)->last_words);
    wait_a_while(until);
  }
}

std::string HostsRunner::problem_with(const Host& h) const {
  const int code = WIFEXITED(h.status) ? WEXITSTATUS(h.status) : 128 + WTERMSIG(h.status);
  const auto said = h.last_words.empty() ? std::string() : ": " + h.last_words;
  if (code == kNoConnection) return fmt::format("no connection to host {}{}", h.name, said);
  if (code == kNotFound || code == kNotRun)
    return fmt::format("host {} cannot run {}{}; --there says where the program is on the other hosts", h.name,
                       options_.program, said);
  return fmt::format("{} on host {} is another version of this program, or another program: it ended with {}{}",
                     options_.program, h.name, code, said);
}

void HostsRunner::order(Host& h) {
  const RanksOptions& r = options_.ranks;
  auto environment = passed_on();
  for (const auto& [name, value] : r.environment) environment[name] = value;
  environment["MASTER_ADDR"] = address_of(hosts_.front()->name);
  environment["MASTER_PORT"] = std::to_string(hosts_.front()->port);
  std::error_code none;
  const Json order{{"first", rank_of(h, 0)},
                   {"count", r.count},
                   {"world", r.count * static_cast<int>(hosts_.size())},
                   {"host", h.number},
                   {"program", r.program.empty() ? options_.program : r.program},
                   {"words", r.words},
                   {"environment", environment},
                   {"folder", std::filesystem::current_path(none).string()},
                   {"grace", r.grace.count()}};
  const auto text = order.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (std::size_t at = 0; at < text.size();) {
    const auto n = write(h.orders.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // it has ended; the end of its output reports that
    at += static_cast<std::size_t>(n);
  }
}

/// An agent that no longer reads is given up at the second SIGKILL.
void HostsRunner::signal_all(int signal) {
  const bool again = signal == SIGKILL && kills_++ > 0;
  if (signal == SIGKILL && !again) begin_ending(1);
  for (auto& h : hosts_)
    if (again && h->running) kill(-h->pid, SIGKILL);
  const auto text = fmt::format("{}\n", signal);
  for (auto& h : hosts_)
    if (h->running && h->orders.get() >= 0) [[maybe_unused]]
      const auto n = write(h->orders.get(), text.data(), text.size());
}

void HostsRunner::hear(Host& h, const std::string& line) {
  if (h.ready) return hear_rank(h, line);
  if (!line.starts_with(kGreeting)) return;  // output of a shell that starts
  std::istringstream in(line.substr(kGreeting.size()));
  if (in >> h.port && std::getline(in.ignore(), h.version)) h.ready = true;
}

void HostsRunner::hear_rank(Host& h, const std::string& line) {
  char kind = 0;
  int rank = -1;
  std::istringstream in(line);
  const int local = in >> kind >> rank ? rank - rank_of(h, 0) : -1;
  if (local < 0 || local >= options_.ranks.count) return tell("hpcdl: [launch] host {}: {}", h.name, line);
  if (kind == kEndLine) {
    RankEnd end{.rank = rank};
    if (!(in >> end.code >> end.signal)) return;
    h.ended[static_cast<std::size_t>(local)] = true;
    return ended(end);
  }
  std::string text;
  std::getline(in.ignore(), text);
  const bool plain = options_.ranks.plain && rank == 0 && kind == kOutLine;
  Output& to = kind == kErrLine || (options_.ranks.plain && rank > 0) ? err_ : out_;
  to.put(fmt::format("{}{}\n", plain ? std::string() : fmt::format("[rank {}] ", rank), text));
}

void HostsRunner::pump(bool at_end) {
  for (auto& h : hosts_) {
    const auto said = [&](const std::string& line) { hear(*h, line); };
    const auto complained = [&](const std::string& line) {
      h->last_words = line;
      if (h->ready) tell("hpcdl: [launch] host {}: {}", h->name, line);
    };
    if (!at_end && (out_.full() || err_.full())) continue;
    h->out.pump(at_end ? LineReader::kBlocksAtEnd : kBlocks, said);
    h->err.pump(at_end ? LineReader::kBlocksAtEnd : kBlocks, complained);
  }
}

/// ssh has ended: its ranks have reported how they ended, or are lost with their host.
void HostsRunner::reap() {
  for (auto& h : hosts_) {
    if (!h->running || waitpid(h->pid, &h->status, WNOHANG) != h->pid) continue;
    h->running = false;
    if (!h->ready) continue;
    h->out.pump(LineReader::kBlocksAtEnd, [&](const std::string& line) { hear(*h, line); });
    const auto lost = std::find(h->ended.begin(), h->ended.end(), false);
    if (lost == h->ended.end()) continue;
    const int first = rank_of(*h, static_cast<int>(lost - h->ended.begin()));
    const auto said = h->last_words.empty() ? std::string() : " (" + h->last_words + ")";
    ended(
        {.rank = first,
         .code = exit_code::kPeerLost,
         .why = fmt::format("host {} was lost, with rank {}: the connection to it has ended{}", h->name, first, said)});
  }
}

}  // namespace

RanksResult run_on_hosts(const HostsOptions& options) { return HostsRunner(options).run(); }

int run_agent() {
  const int port = comm::port_of(comm::listen_at("", 0));
  print_text(fmt::format("{}{} {}\n", kGreeting, port, version()));
  std::string line;
  for (char c; line.empty() || line.back() != '\n'; line += c) {
    const auto n = read(STDIN_FILENO, &c, 1);  // reads no byte of what follows
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return exit_code::kDone;  // the ranks are not to start
  }
  const auto order = io::parse_json(line, "the order of hpcdl launch");
  const std::string folder = order.at("folder");
  std::error_code error;
  std::filesystem::current_path(folder, error);
  if (error)
    fail_usage("launch", "this host has no folder {}, where hpcdl launch was called: {}", folder, error.message());
  RanksOptions r;
  r.program = order.at("program"), r.words = order.at("words").get<std::vector<std::string>>();
  r.count = order.at("count"), r.first = order.at("first"), r.world = order.at("world"), r.host = order.at("host");
  r.environment = order.at("environment").get<std::map<std::string, std::string>>();
  r.grace = std::chrono::milliseconds(order.at("grace").get<std::int64_t>());
  r.for_others = true;
  if (!r.environment.contains("OMP_NUM_THREADS") && !r.environment.contains("HPCDL_THREADS"))
    r.environment["OMP_NUM_THREADS"] = std::to_string(std::max(1, usable_cpus() / r.count));
  run_ranks(r);
  return exit_code::kDone;
}

}  // namespace hpcdl::cli
