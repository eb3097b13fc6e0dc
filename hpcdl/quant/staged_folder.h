#pragma once
// A folder that is either whole or absent: filled aside, then renamed.

#include "hpcdl/io/file.h"

namespace hpcdl::quant {

class StagedFolder {
 public:
  /// Throws Error when `target` holds anything but the files of a model folder: there is nothing else to lose.
  explicit StagedFolder(io::fs::path target);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  /// Without commit() nothing remains.
  ~StagedFolder();

  const io::fs::path& path() const { return aside_; }
  void commit();

 private:
  io::fs::path target_, aside_;
};

}  // namespace hpcdl::quant
