#pragma once
// Files and folders that are worth nothing before they are finished, for the case that a signal ends the process:
// destructors do not run then.

#include <filesystem>

namespace hpcdl {

/// Lists a file or folder while it lives. Removing it in the ordinary course is the owner's business.
class Unfinished {
 public:
  Unfinished() = default;
  explicit Unfinished(const std::filesystem::path& path);
  Unfinished(Unfinished&& o) noexcept;
  Unfinished& operator=(Unfinished&& o) noexcept;
  /// It is finished, or gone.
  ~Unfinished();

 private:
  int slot_ = -1;  // -1: none; more than the list holds are not listed
};

/// Removes everything listed, folders with all that is in them. For handlers of signals that end the process: it only
/// makes system calls, and may run while other threads write.
void remove_unfinished() noexcept;

}  // namespace hpcdl
