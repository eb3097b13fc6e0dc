#pragma once
// Files and folders that are worth nothing before they are finished, for the case that a signal ends the process:
// destructors do not run then.

#include <filesystem>

namespace hpcdl {

/// Lists a file or folder while it lives. Removing it in the ordinary course is the owner's business.
class Unfinished {
 public:
  Unfinished() = default;
  /// Before it is created, by the same thread, which then calls created(): so no signal comes in between unnoticed.
  /// Once remove_unfinished() has begun, this never returns: the process ends.
  explicit Unfinished(const std::filesystem::path& path);
  Unfinished(Unfinished&& o) noexcept;
  Unfinished& operator=(Unfinished&& o) noexcept;
  /// It is finished, or gone.
  ~Unfinished();

  /// It exists now.
  void created() noexcept;
  /// Right before it gets the name under which it stays. Does not return once another thread is removing it.
  void finishing() noexcept;

 private:
  int slot_ = -1;  // -1: none; more than the list holds are not listed
};

/// Removes everything listed, folders with all that is in them. For handlers of signals that end the process: it only
/// makes system calls, and may run while other threads write. It waits, at most half a second, for what other threads
/// are about to create.
void remove_unfinished() noexcept;

}  // namespace hpcdl
