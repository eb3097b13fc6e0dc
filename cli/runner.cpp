#include "cli/runner.h"

#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/verb.h"
#include "hpcdl/train/stop.h"

namespace hpcdl::cli {

namespace {

constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
constexpr int kKillAt = 3;                     // signals
constexpr std::size_t kLongestLine = 1 << 16;  // a longer line is cut in two
constexpr std::size_t kPiece = 4096;  // bytes: what a pipe takes that poll() calls writable, without making us wait

bool is_writable(int fd) {
  pollfd p{fd, POLLOUT, 0};
  return poll(&p, 1, 0) > 0;
}

}  // namespace

void Output::put(std::string_view text) {
  text_ += text;
  write();
}

void Output::write() {
  while (!text_.empty() && is_writable(fd_)) {
    const auto n = ::write(fd_, text_.data() + written_, std::min(text_.size() - written_, kPiece));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) {
      if (errno != EPIPE) failure_ = errno;
      text_.clear(), written_ = 0;
      return;
    }
    written_ += static_cast<std::size_t>(n);
    if (written_ == text_.size() || written_ > kMost) text_.erase(0, written_), written_ = 0;
  }
}

bool LineReader::read_block() {
  char block[16384];
  const ssize_t n = read(from_.get(), block, sizeof block);
  if (n < 0) return errno == EINTR;
  text_.append(block, static_cast<std::size_t>(n));
  if (n == 0) {
    from_ = io::Fd();
    if (!text_.empty() && text_.back() != '\n') text_ += '\n';
  }
  return true;
}

bool LineReader::next() {
  const auto end = text_.find('\n', parsed_);
  if (end == std::string::npos) {
    text_.erase(0, std::exchange(parsed_, 0));
    if (text_.size() <= kLongestLine) return false;
    line_ = std::exchange(text_, {});
    return true;
  }
  line_.assign(text_, parsed_, end - parsed_);
  parsed_ = end + 1;
  return true;
}

std::pair<io::Fd, io::Fd> make_pipe() {
  int ends[2];
  const bool made = pipe2(ends, O_CLOEXEC) == 0;  // first: a call may read errno before its other arguments
  require(made, "launch", "cannot make a pipe: {}", std::strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {io::Fd(ends[0]), io::Fd(ends[1])};
}

Runner::Runner(std::chrono::milliseconds grace) : grace_(grace), out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int s : kPassedOn) sigaddset(&watched, s);
  sigprocmask(SIG_BLOCK, &watched, &before_);
  signals_ = io::Fd(signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  require(signals_.get() >= 0, "launch", "signalfd: {}", std::strerror(errno));
}

Runner::~Runner() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

void Runner::tell_line(const std::string& line) {
  if (silent_) return;
  err_.write();
  if (!err_.pending() && is_writable(err_.fd())) return say_raw(line);
  err_.put(line + "\n");
}

void Runner::begin_ending(int stage) {
  stage_ = stage;
  next_stage_ = Clock::now() + grace_;
}

void Runner::ended(const RankEnd& end) {
  result_.ends.push_back(end);
  if (silent_ || end.good() || end.saved() || next_stage_ || !running()) return;
  if (!result_.asked)
    tell("hpcdl: [launch] {}; the other ranks have {:.0f} s to end", end.text(),
         std::chrono::duration<double>(grace_).count());
  begin_ending();
}

void Runner::end_others() {
  if (!next_stage_ || Clock::now() < *next_stage_) return;
  signal_all(stage_++ == 0 ? SIGTERM : SIGKILL);
  next_stage_ = Clock::now() + grace_;
}

/// Ranks would take a second signal as a request to end without saving.
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
    // The terminal or the connection to this host closes: ranks do not handle SIGHUP, and would end without saving.
    signal_all(enough ? SIGKILL : signal == SIGHUP ? SIGTERM : signal);
    tell("hpcdl: [launch] {} {} the ranks", strsignal(signal), enough ? "for the third time: killing" : "passed on to");
  }
}

void Runner::wait_a_while(std::optional<Clock::time_point> until) {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
  for (const Output* o : {&out_, &err_})
    if (o->pending()) fds.push_back({o->fd(), POLLOUT, 0});
  wait_for(fds);
  if (next_stage_ && (!until || *next_stage_ < *until)) until = next_stage_;
  int timeout = -1;
  if (until)
    timeout = static_cast<int>(
        std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now()).count()));
  poll(fds.data(), fds.size(), timeout);
  out_.write(), err_.write();
}

/// After a request to stop, output that is not read is dropped.
void Runner::drain() {
  std::optional<Clock::time_point> until;
  while (out_.pending() || err_.pending()) {
    if (result_.asked && !until) until = Clock::now() + grace_;
    if (until && Clock::now() >= *until) break;
    std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
    for (const Output* o : {&out_, &err_})
      if (o->pending()) fds.push_back({o->fd(), POLLOUT, 0});
    const auto left = until ? std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now()).count() : -1;
    poll(fds.data(), fds.size(), static_cast<int>(left));
    out_.write(), err_.write();
    const int times = asked_times_;
    read_signals();
    if (times > 0 && asked_times_ > times) break;
  }
}

RanksResult Runner::run() {
  start();
  while (running()) {
    wait_a_while();
    pump(false);
    read_signals();
    reap();
    end_others();
  }
  pump(true);
  drain();
  for (const Output* o : {&out_, &err_})
    if (o->failure()) result_.lost_lines = o->failure();
  return result_;
}

}  // namespace hpcdl::cli
