// What of the table lies in files on disks.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/state/table.h"

namespace hpcdl {
namespace {

/// Bytes of an entry in a block of memory that begins with a multiple of what any kernel asks for.
std::int64_t room_of(const StateEntry& e) {
  constexpr std::int64_t kMultiple = 256;
  return (e.memory.bytes() + kMultiple - 1) / kMultiple * kMultiple;
}

bool lies_in(const Tensor& t, const std::byte* begin, std::int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(t.data());
  return begin && at >= begin && at < begin + bytes;
}

/// Memory of another owner that nothing reads any more: its whole pages are free.
void give_back(const Tensor& t) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(t.data()), begin = (at + page - 1) / page * page,
             end = (at + static_cast<std::uintptr_t>(t.bytes())) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void move_entry(StateEntry& e, const Tensor& there) {
  const auto* before = e.memory.data();
  std::memcpy(there.data(), before, static_cast<std::size_t>(there.bytes()));
  e.memory = there;
  for (auto* same : {&e.host, &e.staged})
    if (same->spec() && same->data() == before) *same = there;
}

}  // namespace

/// The entries of moments, one parameter after the other, in a file with one name after the other.
void StateTable::place_on_disk(StateGroup& moments, std::size_t names, const std::filesystem::path& folder) const {
  std::int64_t end = 0;
  for (std::size_t name = 0; name < names; ++name)
    for (std::size_t i = name; i < moments.entries.size(); i += names) {
      auto& m = moments.entries[i];
      m.on_disk = end;
      end += io::ScratchFile::padded(m.memory.bytes());
    }
  if (described_ || end == 0) return;
  moments.file = std::make_shared<io::ScratchFile>(folder, end);
  for (auto& m : moments.entries)
    m.memory = m.host = m.staged = Tensor(moments.file->data() + m.on_disk, m.memory.spec());
}

void StateTable::move_to_disk(const std::filesystem::path& folder,
                              const std::function<bool(const StateEntry&)>& moves) {
  require(!device_.is_cuda() && !layout_ && frozen_bytes_ == 0, "model",
          "values on a disk are for models in the memory of a CPU that ranks do not divide");
  move_group(values_, folder, moves);
  move_group(frozen_, folder, moves);
  tell_modules();
}

void StateTable::move_group(StateGroup& group, const std::filesystem::path& folder,
                            const std::function<bool(const StateEntry&)>& moves) {
  std::int64_t end = 0, rest = 0;
  bool some = false;
  for (auto& e : group.entries) {
    e.on_disk = moves(e) ? end : -1;
    some |= e.on_disk >= 0;
    if (e.on_disk < 0) rest += room_of(e);
    end += io::ScratchFile::padded(e.memory.bytes());
  }
  if (described_ || (!some && !group.file)) return;
  const auto file = some ? std::make_shared<io::ScratchFile>(folder, end) : nullptr;
  Buffer memory = block(rest);
  auto* next = memory.data();
  for (auto& e : group.entries) {
    const bool own = lies_in(e.memory, group.memory.data(), group.memory.bytes()) ||
                     (group.file && lies_in(e.memory, group.file->data(), group.file->bytes()));
    const Tensor before = e.memory;
    if (e.on_disk >= 0) {
      move_entry(e, Tensor(file->data() + e.on_disk, before.spec()));
      if (!own) give_back(before);
    } else if (own) {
      move_entry(e, Tensor(next, before.spec()));
      next += room_of(e);
    }
  }
  if (file) file->settle();
  group.file = file, group.memory = std::move(memory);
}

/// After files were written through memory.
void StateTable::settle_files() const {
  for (const auto* group : groups())
    if (group->file) group->file->settle();
}

}  // namespace hpcdl
