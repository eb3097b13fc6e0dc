#include "hpcdl/offload/stash.h"

#include <string>
#include <utility>

#include "hpcdl/graph/move.h"

namespace hpcdl::offload {
namespace {

constexpr std::string_view kHostName = "activations on host";

}  // namespace

void DiskStash::begin(Edit&, std::int64_t bytes) {
  if (described_ || (!files_.empty() && files_.back()->bytes() >= bytes)) return;
  files_.push_back(std::make_shared<io::ScratchFile>(folder_, bytes));
  place_ = io::DiskPlace("activations on disk", files_.back());
}

void DiskStash::write(Edit& edit, std::size_t before, const Operand& from, std::int64_t byte) const {
  place_.write(edit, before, from, byte);
}

void DiskStash::read(Edit& edit, std::size_t before, const Operand& to, std::int64_t byte) const {
  place_.read(edit, before, to, byte);
}

void DiskStash::bind(Bindings& bindings) const { place_.bind(bindings); }

std::vector<const io::ScratchFile*> DiskStash::files() const {
  std::vector<const io::ScratchFile*> list;
  for (const auto& file : files_) list.push_back(file.get());
  return list;
}

void HostStash::begin(Edit& edit, std::int64_t bytes) {
  if (!described_ && (blocks_.empty() || blocks_.back().bytes() < bytes)) blocks_.emplace_back(bytes, device_);
  spec_ = {{bytes}, DType::u8};
  slot_ = edit.add_slot({spec_, SlotKind::state, std::string(kHostName)});
}

/// The bytes of the slot, as a tensor of the same spec.
Operand HostStash::there(const Operand& tensor, std::int64_t byte) const {
  return {slot_, byte / dtype_bytes(tensor.spec.dtype), tensor.spec, tensor.strides};
}

void HostStash::write(Edit& edit, std::size_t before, const Operand& from, std::int64_t byte) const {
  Moves move;
  move.add(there(from, byte), from);
  move.insert(edit, before, Lane::reduce);
}

void HostStash::read(Edit& edit, std::size_t before, const Operand& to, std::int64_t byte) const {
  Moves move;
  move.add(to, there(to, byte));
  move.insert(edit, before, Lane::gather);
}

void HostStash::bind(Bindings& bindings) const {
  bindings.bind(std::string(kHostName), Tensor(blocks_.empty() ? nullptr : blocks_.back().data(), spec_));
}

}  // namespace hpcdl::offload
