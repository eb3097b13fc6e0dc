#pragma once
// Files and folders that must not remain unfinished if a signal ends the process:
// then destructors do not run.

#include <filesystem>

namespace hpcdl {

/// Lists a file or folder for its lifetime. Otherwise the owner removes it.
class Unfinished {
 public:
  Unfinished() = default;
  /// To be made before the file, by the same thread, which then calls created(): so no signal between them is missed.
  /// Once remove_unfinished() has begun, this never returns: the process ends.
  explicit Unfinished(const std::filesystem::path& path);
  Unfinished(Unfinished&& o) noexcept;
  Unfinished& operator=(Unfinished&& o) noexcept;
  /// The file is finished, or removed.
  ~Unfinished();

  /// The file exists now.
  void created() noexcept;
  /// To be called right before it is renamed to its final name. Does not return if another thread is removing it.
  void finishing() noexcept;

 private:
  int slot_ = -1;  // -1: not listed, because the list was full
};

/// Removes everything listed, folders with all that is in them. For handlers of signals that end the process: it only
/// makes system calls, and may run while other threads write. It waits at most half a second for files that other
/// threads are about to create.
void remove_unfinished() noexcept;

}  // namespace hpcdl
