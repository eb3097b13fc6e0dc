#pragma once
// A distributed checkpoint of PyTorch (torch.distributed.checkpoint.save): .metadata, a pickle that says which tensors
// there are and in which boxes, and *.distcp files, in which each box is an archive of torch.save().

#include <map>
#include <string>
#include <vector>

#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::io {

class DcpFolder {
 public:
  /// Maps the files and reads all of their headers. Nothing that is named in a pickle is called. Throws Error, with the
  /// file and the position, if a file is missing or damaged, if a pickle names anything unknown, or unless the files
  /// hold every element of every tensor exactly once.
  explicit DcpFolder(const fs::path& folder);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Names of what is no tensor and is not read: numbers, settings of optimizers.
  const std::vector<std::string>& others() const { return others_; }

 private:
  std::map<std::string, MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::vector<std::string> others_;
};

}  // namespace hpcdl::io
