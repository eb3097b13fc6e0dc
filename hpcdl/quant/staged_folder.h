#pragma once
// A folder that is either whole or absent: filled aside as ".tmp-NAME" in the same folder, then renamed.

#include "hpcdl/core/unfinished.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"

namespace hpcdl::quant {

class StagedFolder {
 public:
  /// Throws Error when `target` holds anything but the files of a model folder, as there is nothing else to lose, and
  /// while another process writes it. What a killed writer left aside is removed.
  explicit StagedFolder(io::fs::path target);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  /// Without commit() nothing remains.
  ~StagedFolder();

  const io::fs::path& path() const { return aside_; }
  void commit();

 private:
  /// Only we write, as long as it lives.
  struct Lock {
    explicit Lock(const io::fs::path& target);
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock();
    io::fs::path path;
    io::Aside file;
  };

  io::fs::path target_, aside_;
  Lock lock_;
  Unfinished unfinished_;
};

}  // namespace hpcdl::quant
