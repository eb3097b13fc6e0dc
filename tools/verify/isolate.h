#pragma once
// Runs code that may crash or hang in a child process.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <sys/types.h>

namespace hpcdl::lab::verify {

/// Memory that a child and its parent share. Initially zero.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes);
  template <class T> T* as() const { return static_cast<T*>(memory_.get()); }

 private:
  std::shared_ptr<void> memory_;
};

/// A child process that runs `body` and ends. Must be started while the process has only one thread. What it
/// prints goes to stderr, because stdout belongs to the parent.
class Child {
 public:
  static constexpr std::uint64_t kPatient = std::uint64_t{1} << 63;

  /// `beat`, in shared memory, is incremented by the body; a child that does not do so for `patience` of its own
  /// processor time, for four times that on the clock while asleep, or for 24 times that in any case, is killed: on
  /// a busy machine no child seems to hang. While kPatient is set in it, the parent waits.
  Child(const std::function<void()>& body, const volatile std::uint64_t* beat, std::chrono::milliseconds patience);
  Child(Child&& o) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  /// True after it has ended in any way.
  bool poll();
  void wait();
  /// Empty if the body returned; otherwise "crashed: Segmentation fault", "hung: no answer within 3 s", "ended the
  /// process with exit code 0".
  const std::string& failure() const { return failure_; }
  bool hung() const { return hung_; }

 private:
  pid_t pid_ = -1;
  SharedMemory returned_{sizeof(bool)};  // set by the body: an exit code of 0 is not enough
  const volatile std::uint64_t* beat_;
  std::uint64_t last_ = 0;
  std::chrono::milliseconds patience_;
  std::chrono::steady_clock::time_point since_;
  double worked_ = 0;  // seconds of processor time at the last beat
  std::string failure_;
  bool hung_ = false;
};

}  // namespace hpcdl::lab::verify
