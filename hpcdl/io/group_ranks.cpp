#include "hpcdl/io/group_ranks.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/ledger.h"

namespace hpcdl::io {

std::vector<std::string> GroupRanks::gather(const std::string& mine) {
  const comm::Label label("the facts of a checkpoint");
  const std::int64_t n = size();
  OwnedTensor length({{1}, DType::i64}), lengths({{n}, DType::i64});
  *length.tensor.ptr<std::int64_t>() = static_cast<std::int64_t>(mine.size());
  group_.all_gather(stream_, lengths.tensor, length.tensor);
  const auto* sizes = lengths.tensor.ptr<std::int64_t>();
  const std::int64_t longest = *std::max_element(sizes, sizes + n);
  std::vector<std::string> out(static_cast<std::size_t>(n));
  if (longest == 0) return out;
  OwnedTensor text({{longest}, DType::u8}), texts({{n * longest}, DType::u8});
  std::memcpy(text.buffer.data(), mine.data(), mine.size());
  group_.all_gather(stream_, texts.tensor, text.tensor);
  for (std::int64_t r = 0; r < n; ++r)
    out[static_cast<std::size_t>(r)].assign(texts.tensor.ptr<const char>() + r * longest,
                                            static_cast<std::size_t>(sizes[r]));
  return out;
}

void GroupRanks::send(std::span<const std::byte> bytes, int to) {
  if (bytes.empty()) return;
  const comm::Label label("a part of a weight for its checkpoint");
  group_.send(stream_, View(bytes.data(), Spec{{static_cast<std::int64_t>(bytes.size())}, DType::u8}), to);
}

void GroupRanks::receive(std::span<std::byte> bytes, int from) {
  if (bytes.empty()) return;
  const comm::Label label("a part of a weight for its checkpoint");
  group_.receive(stream_, Tensor(bytes.data(), Spec{{static_cast<std::int64_t>(bytes.size())}, DType::u8}), from);
}

}  // namespace hpcdl::io
