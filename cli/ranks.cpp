#include "cli/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/hosts.h"
#include "cli/runner.h"
#include "cli/verb.h"
#include "hpcdl/io/file.h"
#include "hpcdl/train/stop.h"

extern char** environ;

namespace hpcdl::cli {

namespace {

std::vector<std::string> environment_of(int rank, const RanksOptions& o) {
  auto all = o.environment;
  const auto number = std::to_string(rank), world = std::to_string(o.world > 0 ? o.world : o.count);
  for (const char* name : {"RANK", "ROLE_RANK"}) all[name] = number;
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) all[name] = world;
  all["LOCAL_RANK"] = std::to_string(rank - o.first);
  all["LOCAL_WORLD_SIZE"] = std::to_string(o.count);
  all["GROUP_RANK"] = std::to_string(o.host);
  std::vector<std::string> list;
  for (const auto& [name, value] : all) list.push_back(name + "=" + value);
  for (char** e = environ; *e; ++e) {
    const std::string_view entry(*e);
    if (!all.contains(std::string(entry.substr(0, entry.find('='))))) list.emplace_back(entry);
  }
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (auto& w : words) list.push_back(w.data());
  list.push_back(nullptr);
  return list;
}

/// Standard input, read without waiting; the ranks do not have it.
io::Fd own_stdin() {
  io::Fd copy(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  require(copy.get() >= 0, "launch", "cannot read the orders of hpcdl launch: {}", std::strerror(errno));
  fcntl(copy.get(), F_SETFL, fcntl(copy.get(), F_GETFL) | O_NONBLOCK);
  return copy;
}

struct Process {
  int rank;
  pid_t pid;
  bool running = true;
};

struct Lines {
  LineReader from;
  std::string prefix;
  Output& to;
  void put(const std::string& line) const { to.put(prefix + line + "\n"); }
};

/// Ranks that are processes of this host.
class LocalRunner final : public Runner {
 public:
  explicit LocalRunner(const RanksOptions& options) : Runner(options.grace), options_(options) {
    silent_ = options.for_others;
  }
  ~LocalRunner() override {
    signal_all(SIGKILL);
    for (auto& p : processes_)
      if (p.running) waitpid(p.pid, nullptr, 0);
  }

 private:
  void start() override {
    for (int r = 0; r < options_.count; ++r) start(options_.first + r);
  }
  bool running() const override {
    return std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.running; });
  }
  void signal_all(int signal) override {
    for (const auto& p : processes_)
      if (p.running) kill(-p.pid, signal);
  }
  void reap() override;
  void pump(bool at_end) override;
  void wait_for(std::vector<pollfd>& list) const override {
    if (orders_.open()) list.push_back({orders_.fd(), POLLIN, 0});
    for (const auto& l : lines_)
      if (l.from.open() && !l.to.full()) list.push_back({l.from.fd(), POLLIN, 0});
  }
  void start(int rank);
  void ended(Process& p, const siginfo_t& info);
  void hear_orders();

  const RanksOptions& options_;
  std::vector<Process> processes_;
  std::vector<Lines> lines_;
  LineReader orders_{options_.for_others ? own_stdin() : io::Fd()};
};

void LocalRunner::start(int rank) {
  auto [out, out_end] = make_pipe();
  auto [err, err_end] = make_pipe();
  auto words = options_.words;
  words.insert(words.begin(), options_.program.substr(options_.program.rfind('/') + 1));
  auto environment = environment_of(rank, options_);
  const auto argv = pointers(words), envp = pointers(environment);
  const bool reads = rank == 0 && !options_.for_others && !isatty(STDIN_FILENO);
  const pid_t parent = getpid(), pid = fork();
  require(pid >= 0, "launch", "cannot start rank {}: {}", rank, std::strerror(errno));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // if this program is killed, the ranks still save
    if (getppid() != parent) _exit(exit_code::kInternal);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    for (const int ignored : {SIGPIPE, SIGXFSZ}) signal(ignored, SIG_DFL);
    // Rank 0 reads the standard input of this program, as under mpirun, but not a terminal, which would stop background
    // processes.
    if (!reads) dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(out_end.get(), STDOUT_FILENO);
    dup2(err_end.get(), STDERR_FILENO);
    execvpe(options_.program.c_str(), argv.data(), envp.data());
    dprintf(STDERR_FILENO, "hpcdl: [launch] cannot run %s: %s\n", options_.program.c_str(), std::strerror(errno));
    _exit(exit_code::kUsage);
  }
  setpgid(pid, pid);  // the parent and the child both do this, whichever runs first
  processes_.push_back({rank, pid});
  if (options_.for_others) {
    lines_.push_back({LineReader(std::move(out)), fmt::format("{} {} ", kOutLine, rank), out_});
    lines_.push_back({LineReader(std::move(err)), fmt::format("{} {} ", kErrLine, rank), out_});
    return;
  }
  const auto prefix = fmt::format("[rank {}] ", rank);
  lines_.push_back({LineReader(std::move(out)), options_.plain && rank == 0 ? "" : prefix,
                    options_.plain && rank > 0 ? err_ : out_});
  lines_.push_back({LineReader(std::move(err)), prefix, err_});
}

void LocalRunner::ended(Process& p, const siginfo_t& info) {
  kill(-p.pid, SIGKILL);  // what it left; its id stays reserved until waitpid()
  waitpid(p.pid, nullptr, 0);
  p.running = false;
  RankEnd end{.rank = p.rank};
  if (info.si_code == CLD_EXITED) end.code = info.si_status;
  else end.signal = info.si_status, end.code = 128 + info.si_status;
  if (options_.for_others) out_.put(fmt::format("{} {} {} {}\n", kEndLine, end.rank, end.code, end.signal));
  Runner::ended(end);
}

void LocalRunner::reap() {
  for (auto& p : processes_) {
    siginfo_t info{};
    if (p.running && waitid(P_PID, static_cast<id_t>(p.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == p.pid)
      ended(p, info);
  }
}

void LocalRunner::pump(bool at_end) {
  if (options_.for_others) hear_orders();
  for (auto& l : lines_) {
    const auto put = [&](const std::string& line) { l.put(line); };
    if (at_end || !l.to.full()) l.from.pump(at_end ? LineReader::kBlocksAtEnd : kBlocks, put);
    if (at_end) l.from.close(put);
  }
}

/// "15": a signal for the ranks. When the other end closes, the ranks save and end.
void LocalRunner::hear_orders() {
  if (!orders_.open()) return;
  orders_.pump(1, [&](const std::string& line) {
    const int signal = std::atoi(line.c_str());
    if (signal > 0) signal_all(signal);
  });
  if (orders_.open()) return;
  signal_all(SIGTERM);
  begin_ending(1);
}

}  // namespace

bool RankEnd::saved() const { return signal == 0 && (code == exit_code::kRequeue || code == exit_code::kInterrupted); }

std::string RankEnd::text() const {
  if (!why.empty()) return why;
  if (signal) return fmt::format("rank {} was killed by signal {} ({})", rank, signal, strsignal(signal));
  return fmt::format("rank {} ended with code {}", rank, code);
}

const RankEnd* RanksResult::cause() const {
  const RankEnd *failed = nullptr, *requeue = nullptr;
  for (const auto& e : ends) {
    const bool told = failed && failed->code == exit_code::kPeerLost && !e.signal && e.code != exit_code::kPeerLost;
    if (e.saved()) requeue = requeue ? requeue : &e;
    else if (!e.good() && (!failed || told)) failed = &e;
  }
  return failed ? failed : requeue;
}

int RanksResult::code() const {
  const RankEnd* end = cause();
  return !end ? exit_code::kDone : end->signal ? exit_code::kPeerLost : end->code;
}

RanksResult run_ranks(const RanksOptions& options) { return LocalRunner(options).run(); }

}  // namespace hpcdl::cli
