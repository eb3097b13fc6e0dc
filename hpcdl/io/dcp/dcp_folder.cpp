#include "hpcdl/io/dcp/dcp_folder.h"

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/dcp/metadata.h"
#include "hpcdl/io/dcp/torch_tensor.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_folder.h"

namespace hpcdl::io {

DcpFolder::DcpFolder(const fs::path& folder) {
  const fs::path file = folder / ".metadata";
  std::error_code ignored;
  require(fs::exists(file, ignored), "io",
          "{}: expected a distributed checkpoint of PyTorch (.metadata and *.distcp), found {}", folder.string(),
          contents_in_words(folder));
  const std::string text = read_file(file);
  auto metadata = dcp::parse_metadata(text, file.string());
  others_ = std::move(metadata.others);
  for (const auto& t : metadata.tensors) {
    StoredTensor stored{t.name, t.whole, {}};
    for (const auto& chunk : t.chunks) {
      auto it = files_.find(chunk.file);
      if (it == files_.end()) it = files_.emplace(chunk.file, MappedFile(folder / chunk.file)).first;
      const MappedFile& mapped = it->second;
      require(chunk.offset <= mapped.size() && chunk.bytes <= mapped.size() - chunk.offset, "io",
              "{}: tensor {} is at byte {}, with {} bytes, but the file has {}: truncated?", mapped.path().string(),
              shown(t.name), chunk.offset, chunk.bytes, mapped.size());
      const std::string_view bytes(reinterpret_cast<const char*>(mapped.data()) + chunk.offset,
                                   static_cast<std::size_t>(chunk.bytes));
      const std::string where =
          fmt::format("{}: tensor {} at byte {}", mapped.path().string(), shown(t.name), chunk.offset);
      const View view = dcp::read_torch_tensor(bytes, where);
      const Spec expected{chunk.part.all() ? t.whole.shape : chunk.part.local, t.whole.dtype};
      require(view.spec() == expected, "io", "{}: .metadata says {}, the file holds {}", where, to_string(expected),
              to_string(view.spec()));
      add_part(stored, {view, chunk.part, &mapped}, where);
    }
    check_cover(stored, folder.string());
    tensors_.push_back(std::move(stored));
  }
}

}  // namespace hpcdl::io
