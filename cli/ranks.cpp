#include "cli/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/verb.h"
#include "hpcdl/io/file.h"
#include "hpcdl/train/stop.h"

extern char** environ;

namespace hpcdl::cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
constexpr int kKillAt = 3;                     // signals
constexpr std::size_t kLongestLine = 1 << 16;  // then it is cut in two
constexpr int kBlocks = 4;                     // of one pipe at a time: signals and other ranks have their turn
constexpr int kBlocksAtEnd = 128;              // as many as the largest pipe holds
constexpr int kWhileStuck = 100;               // ms between looks at the signals while nobody takes what is written

/// Whole lines of one pipe, each behind its rank.
class Lines {
 public:
  /// `waiting` is called from time to time while nobody takes what is written; false: what is left is dropped.
  Lines(io::Fd from, std::string prefix, int to, std::function<bool()> waiting)
      : from_(std::move(from)), prefix_(std::move(prefix)), to_(to), waiting_(std::move(waiting)) {}
  int fd() const { return from_.get(); }
  /// Why lines could not be written; 0: they were, or nobody reads them any more.
  int failure() const { return failure_; }
  bool open() const { return from_.get() >= 0; }

  /// Takes what is there now, at most so many blocks of it: a rank may write faster than anybody reads.
  void pump(int blocks) {
    char block[16384];
    for (; open() && blocks > 0; --blocks) {
      const ssize_t n = read(from_.get(), block, sizeof block);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;
      if (n == 0) return close();
      text_.append(block, static_cast<std::size_t>(n));
      write_lines();
    }
  }
  /// Also what ends without a line feed.
  void close() {
    if (!text_.empty()) write_line(text_);
    text_.clear();
    from_ = io::Fd();
  }

 private:
  void write_lines() {
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1)
      write_line(text_.substr(begin, end - begin));
    text_.erase(0, begin);
    if (text_.size() > kLongestLine) write_line(std::exchange(text_, {}));
  }
  void write_line(const std::string& line) {
    const auto whole = prefix_ + line + "\n";
    for (std::string_view rest = whole; !rest.empty();) {
      pollfd room{to_, POLLOUT, 0};
      if (poll(&room, 1, kWhileStuck) == 0) {
        if (waiting_()) continue;
        return;
      }
      // A pipe that has room takes as much at once.
      const ssize_t n = write(to_, rest.data(), std::min<std::size_t>(rest.size(), PIPE_BUF));
      if (n >= 0) rest.remove_prefix(static_cast<std::size_t>(n));
      else if (errno != EINTR && errno != EAGAIN) {
        if (errno != EPIPE) failure_ = errno;
        return;
      }
    }
  }

  io::Fd from_;
  std::string prefix_, text_;
  int to_;
  std::function<bool()> waiting_;
  int failure_ = 0;
};

std::pair<io::Fd, io::Fd> make_pipe() {
  int ends[2];
  const bool made = pipe2(ends, O_CLOEXEC) == 0;  // errno is read behind it: a call has no order of arguments
  require(made, "launch", "cannot make a pipe: {}", std::strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {io::Fd(ends[0]), io::Fd(ends[1])};
}

std::vector<std::string> environment_of(int rank, const RanksOptions& o) {
  auto all = o.environment;
  const auto number = std::to_string(rank), count = std::to_string(o.count);
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) all[name] = number;
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) all[name] = count;
  all["GROUP_RANK"] = "0";
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

struct Process {
  int rank;
  pid_t pid;
  bool running = true;
};

class Runner {
 public:
  explicit Runner(const RanksOptions& options);
  ~Runner();
  RanksResult run();

 private:
  void start(int rank);
  void wait_a_while();
  bool asked_again(int signal);
  void read_signals();
  void reap();
  void ended(Process& p, const siginfo_t& info);
  void end_others();
  void signal_all(int signal) const;
  bool while_stuck();
  void say_kept();

  const RanksOptions& options_;
  std::vector<Process> processes_;
  std::vector<Lines> lines_;
  RanksResult result_;
  sigset_t before_{};
  io::Fd signals_;
  int asked_times_ = 0, stage_ = 0, last_signal_ = 0;
  Clock::time_point last_asked_;
  std::optional<Clock::time_point> next_stage_;
  bool stuck_ = false;
  std::vector<std::string> kept_;  // to be said once there is room
};

Runner::Runner(const RanksOptions& options) : options_(options) {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int s : kPassedOn) sigaddset(&watched, s);
  sigprocmask(SIG_BLOCK, &watched, &before_);
  signals_ = io::Fd(signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  require(signals_.get() >= 0, "launch", "signalfd: {}", std::strerror(errno));
}

Runner::~Runner() {
  signal_all(SIGKILL);
  for (auto& p : processes_)
    if (p.running) waitpid(p.pid, nullptr, 0);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void Runner::signal_all(int signal) const {
  for (const auto& p : processes_)
    if (p.running) kill(-p.pid, signal);
}

void Runner::start(int rank) {
  auto [out, out_end] = make_pipe();
  auto [err, err_end] = make_pipe();
  auto words = options_.words;
  words.insert(words.begin(), options_.program.substr(options_.program.rfind('/') + 1));
  auto environment = environment_of(rank, options_);
  const auto argv = pointers(words), envp = pointers(environment);
  const pid_t parent = getpid(), pid = fork();
  require(pid >= 0, "launch", "cannot start rank {}: {}", rank, std::strerror(errno));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // should this program be killed outright, the ranks still save
    if (getppid() != parent) _exit(exit_code::kInternal);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    for (const int ignored : {SIGPIPE, SIGXFSZ}) signal(ignored, SIG_DFL);
    // Rank 0 reads what this program was given, as under mpirun; not a terminal, which stops those in its background.
    if (rank > 0 || isatty(STDIN_FILENO)) dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(out_end.get(), STDOUT_FILENO);
    dup2(err_end.get(), STDERR_FILENO);
    execvpe(options_.program.c_str(), argv.data(), envp.data());
    dprintf(STDERR_FILENO, "hpcdl: [launch] cannot run %s: %s\n", options_.program.c_str(), std::strerror(errno));
    _exit(exit_code::kUsage);
  }
  setpgid(pid, pid);  // whoever comes first
  processes_.push_back({rank, pid});
  const auto prefix = fmt::format("[rank {}] ", rank);
  lines_.emplace_back(std::move(out), options_.plain && rank == 0 ? "" : prefix,
                      options_.plain && rank > 0 ? STDERR_FILENO : STDOUT_FILENO, [this] { return while_stuck(); });
  lines_.emplace_back(std::move(err), prefix, STDERR_FILENO, [this] { return while_stuck(); });
}

void Runner::ended(Process& p, const siginfo_t& info) {
  kill(-p.pid, SIGKILL);  // what it left behind; its own number is still taken, as nobody has waited for it
  waitpid(p.pid, nullptr, 0);
  p.running = false;
  RankEnd end{.rank = p.rank};
  if (info.si_code == CLD_EXITED) end.code = info.si_status;
  else end.signal = info.si_status, end.code = 128 + info.si_status;
  result_.ends.push_back(end);
  if (end.good() || end.saved() || next_stage_) return;
  const bool others = std::any_of(processes_.begin(), processes_.end(), [](const Process& q) { return q.running; });
  if (!others) return;
  if (!result_.asked)
    say("hpcdl: [launch] {}; the other ranks have {:.0f} s to leave", end.text(),
        std::chrono::duration<double>(options_.grace).count());
  next_stage_ = Clock::now() + options_.grace;
}

void Runner::reap() {
  for (auto& p : processes_) {
    siginfo_t info{};
    if (p.running && waitid(P_PID, static_cast<id_t>(p.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == p.pid)
      ended(p, info);
  }
}

void Runner::end_others() {
  if (!next_stage_ || Clock::now() < *next_stage_) return;
  signal_all(stage_++ == 0 ? SIGTERM : SIGKILL);
  next_stage_ = Clock::now() + options_.grace;
}

/// Ranks would take a second signal for the word to end without saving.
bool Runner::asked_again(int signal) {
  const auto now = Clock::now();
  const bool again = signal == last_signal_ && now - last_asked_ < train::kSameAsking;
  if (!again) last_signal_ = signal, last_asked_ = now;
  return again;
}

void Runner::read_signals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    const bool again = asked_again(signal), enough = ++asked_times_ >= kKillAt;
    if (again && !enough) continue;
    if (!result_.asked) result_.asked = signal;
    // A terminal that closes, or a connection to this host: ranks know nothing of SIGHUP, and would be lost unsaved.
    signal_all(enough ? SIGKILL : signal == SIGHUP ? SIGTERM : signal);
    kept_.push_back(fmt::format("hpcdl: [launch] {} {} the ranks", strsignal(signal),
                                enough ? "for the third time: killing" : "passed on to"));
    if (!stuck_) say_kept();
  }
}

void Runner::say_kept() {
  for (const auto& line : std::exchange(kept_, {})) say("{}", line);
}

/// Nobody takes the ranks' lines: signals still go to them, and what there is to say waits.
bool Runner::while_stuck() {
  stuck_ = true;
  read_signals();
  end_others();
  stuck_ = false;
  return asked_times_ < kKillAt;
}

void Runner::wait_a_while() {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
  for (const auto& l : lines_)
    if (l.open()) fds.push_back({l.fd(), POLLIN, 0});
  int timeout = -1;
  if (next_stage_)
    timeout = static_cast<int>(
        std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(*next_stage_ - Clock::now()).count()));
  poll(fds.data(), fds.size(), timeout);
}

RanksResult Runner::run() {
  for (int r = 0; r < options_.count; ++r) start(r);
  while (std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.running; })) {
    wait_a_while();
    for (auto& l : lines_) l.pump(kBlocks);
    say_kept();
    read_signals();
    reap();
    end_others();
  }
  for (auto& l : lines_) {
    l.pump(kBlocksAtEnd), l.close();
    if (l.failure()) result_.lost_lines = l.failure();
  }
  say_kept();
  return result_;
}

}  // namespace

bool RankEnd::saved() const { return signal == 0 && (code == exit_code::kRequeue || code == exit_code::kInterrupted); }

std::string RankEnd::text() const {
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

RanksResult run_ranks(const RanksOptions& options) { return Runner(options).run(); }

}  // namespace hpcdl::cli
