#include "hpcdl/io/disk_moves.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hpcdl/core/error.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/pages.h"

namespace hpcdl::io {
namespace {

static_assert(kPageBytes % ScratchFile::kAlign == 0);
[[maybe_unused]] const bool whole_pages = know_whole_pages(DiskRead::name) && know_whole_pages(DiskWrite::name);

// Lanes on which exchanges with other ranks run, too: they do not wait for each other.
constexpr Lane kReads = Lane::gather, kWrites = Lane::reduce;

void check(std::string_view name, const RawRecord& r) {
  r.require_count(1);
  const auto byte = r.args<OnDisk>().byte;
  require(r.contiguous(0) && byte >= 0 && byte % ScratchFile::kAlign == 0, name,
          "expected a tensor and a page of its file, got byte {}", byte);
}

Ticket begin(ScratchFile::Way way, const Grad& t, const void* args) {
  const auto& a = *static_cast<const OnDisk*>(args);
  const auto* file = static_cast<const ScratchFile*>(a.at);
  const auto start = Ticket::Clock::now();
  return Ticket([file, start, moving = file->start(way, a.byte, t.ptr<std::byte>(), ScratchFile::padded(t.bytes()))] {
    file->wait(moving);
    return Ticket::Span{start, Ticket::Clock::now()};
  });
}

template <class Move> void insert(Edit& edit, std::size_t before, const Operand& o, const OnDisk& args, Lane lane) {
  const auto& records = edit.program().records;
  const auto& next = records[std::min(before, records.size() - 1)];
  Record record;
  record.lane = lane, record.phase = next.phase, record.scope = next.scope;
  edit.insert<Move>(before, record, std::span(&o, 1), args);
}

}  // namespace

void DiskRead::check_record(const RawRecord& r) { check(name, r); }
void DiskWrite::check_record(const RawRecord& r) { check(name, r); }

Ticket DiskRead::start(Stream&, const Grad* t, const void* args) { return begin(ScratchFile::Way::read, *t, args); }
Ticket DiskWrite::start(Stream&, const Grad* t, const void* args) { return begin(ScratchFile::Way::write, *t, args); }

void DiskRead::run(Stream& s, const Grad* t, const void* args) { start(s, t, args).wait(); }
void DiskWrite::run(Stream& s, const Grad* t, const void* args) { start(s, t, args).wait(); }

void DiskPlace::read(Graph& g, Operand to, std::int64_t byte, Phase phase) const {
  const Graph::OnLane on(g, kReads);
  to.access = Access::write;
  const auto a = args(byte);
  g.emit<DiskRead>(std::span(&to, 1), &a, sizeof a, {}, phase, &a);
}

void DiskPlace::write(Graph& g, Operand from, std::int64_t byte, Phase phase) const {
  const Graph::OnLane on(g, kWrites);
  from.access = Access::read;
  const auto a = args(byte);
  g.emit<DiskWrite>(std::span(&from, 1), &a, sizeof a, {}, phase, &a);
}

void DiskPlace::read(Edit& edit, std::size_t before, Operand to, std::int64_t byte) const {
  to.access = Access::write;
  insert<DiskRead>(edit, before, to, args(byte), kReads);
}

void DiskPlace::write(Edit& edit, std::size_t before, Operand from, std::int64_t byte) const {
  from.access = Access::read;
  insert<DiskWrite>(edit, before, from, args(byte), kWrites);
}

void DiskPlace::bind(Bindings& bindings) const {
  if (file_) bindings.bind(name_, static_cast<const void*>(file_.get()));
}

std::int64_t disk_bytes(const Program& program) {
  std::int64_t sum = 0;
  for (const auto& r : program.records)
    if (r.op == DiskRead::name || r.op == DiskWrite::name)
      sum += ScratchFile::padded(program.operands[r.operands].spec.bytes());
  return sum;
}

}  // namespace hpcdl::io
