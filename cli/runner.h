#pragma once
// What `hpcdl launch` does while its ranks run, wherever they are: it receives signals, prints their lines, and ends
// the other ranks when one has failed. Nothing here waits for the reader of its output.

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/ranks.h"
#include "hpcdl/io/file.h"

namespace hpcdl::cli {

/// Standard output or error, written as fast as it is read.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  void put(std::string_view text);
  bool pending() const { return !text_.empty(); }
  /// The ranks that fill it have to wait.
  bool full() const { return text_.size() >= kMost; }
  /// Writes what can be written now.
  void write();
  /// Stops writing.
  void give_up() { text_.clear(); }
  /// Why lines could not be written, an errno; 0: they were, or their reader has gone.
  int failure() const { return failure_; }

 private:
  static constexpr std::size_t kMost = 1 << 20;  // bytes
  int fd_;
  std::string text_;
  std::size_t written_ = 0;
  int failure_ = 0;
};

/// Reads whole lines from one pipe.
class LineReader {
 public:
  static constexpr int kBlocksAtEnd = 128;  // as many as the largest pipe holds

  explicit LineReader(io::Fd from) : from_(std::move(from)) {}
  int fd() const { return from_.get(); }
  bool open() const { return from_.get() >= 0; }
  /// Calls line(text) for each line that is ready, of at most so many blocks: a rank may write faster than its
  /// reader reads.
  template <class F> void pump(int blocks, F&& line) {
    for (; open() && blocks > 0 && read_block(); --blocks)
      while (next()) line(line_);
  }
  /// Also for a last line without a line feed.
  template <class F> void close(F&& line) {
    if (!text_.empty()) line(std::exchange(text_, {}));
    from_ = io::Fd();
  }

 private:
  bool read_block();
  bool next();

  io::Fd from_;
  std::string text_, line_;
  std::size_t parsed_ = 0;
};

/// A pipe whose reading end does not block, and whose ends are not inherited.
std::pair<io::Fd, io::Fd> make_pipe();

class Runner {
 public:
  explicit Runner(std::chrono::milliseconds grace);
  virtual ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  RanksResult run();

 protected:
  using Clock = std::chrono::steady_clock;
  static constexpr int kBlocks = 4;  // blocks of one pipe at a time, so that signals and other ranks have their turn

  virtual void start() = 0;
  virtual bool running() const = 0;
  virtual void signal_all(int signal) = 0;
  virtual void reap() = 0;
  /// Reads what is ready, and at the end all that is left.
  virtual void pump(bool at_end) = 0;
  /// Adds the descriptors to wait for.
  virtual void wait_for(std::vector<pollfd>& list) const = 0;

  void ended(const RankEnd& end);
  template <class... A> void tell(fmt::format_string<A...> f, A&&... args) {
    tell_line(fmt::format(f, std::forward<A>(args)...));
  }
  /// Waits once: until something happens, at most until the given time.
  void wait_a_while(std::optional<std::chrono::steady_clock::time_point> until = {});
  void read_signals();
  /// After `grace` the next stage begins: SIGTERM, then SIGKILL.
  void begin_ending(int stage = 0);

  const std::chrono::milliseconds grace_;
  bool silent_ = false;  // another program reports, and decides when ranks end
  Output out_, err_;
  RanksResult result_;
  sigset_t before_{};

 private:
  void tell_line(const std::string& line);
  bool asked_again(int signal);
  void end_others();
  void write_out();
  void drain();

  io::Fd signals_;
  int asked_times_ = 0, stage_ = 0, last_signal_ = 0;
  Clock::time_point last_asked_;
  std::optional<Clock::time_point> next_stage_;
};

}  // namespace hpcdl::cli
