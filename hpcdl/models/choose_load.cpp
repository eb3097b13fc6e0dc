#include "hpcdl/models/choose_load.h"

#include <unistd.h>

#include <algorithm>

#include "hpcdl/buffer.h"
#include "hpcdl/core/available_memory.h"
#include "hpcdl/core/cgroup.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/file_queue.h"

namespace hpcdl::models {
namespace {

using io::LoadMode;

constexpr std::int64_t kProbed = std::int64_t{64} << 20;
constexpr double kCached = 0.9;  // of the weights: nothing is gained by reading them again
constexpr double kFaster = 1.5;  // so much faster must direct reads be that the page cache is left empty for them
constexpr std::int64_t kMatters = std::int64_t{1}
                                  << 30;  // smaller files are read in less time than a probe and its line

std::string in_words(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

double rate(std::int64_t bytes, Clock::time_point start) { return static_cast<double>(bytes) / seconds_since(start); }

/// The largest file, with a beginning and an end that are not cached: they are read in either way.
LoadFacts::Rates measured(const io::MappedFile& file) {
  const auto half = file.size() / 2 / io::DirectFile::kAlign * io::DirectFile::kAlign;
  const auto bytes = std::min(kProbed, half);
  LoadFacts::Rates r;
  const io::DirectFile direct(file.path());
  if (bytes < 2 * io::FileQueue::kPiece || !direct.direct()) return r;
  const Buffer to(bytes);  // of this size, on a boundary of pages
  io::FileQueue queue;
  auto start = Clock::now();
  const io::FilePiece piece{.file = &direct, .offset = half, .bytes = bytes, .memory = to.data()};
  queue.wait(queue.start({&piece, 1}));
  r.direct = rate(bytes, start);
  start = Clock::now();
  file.prefetch(0, bytes).wait();
  r.mapped = rate(bytes, start);
  return r;
}

LoadChoice chosen(const io::LoadOptions& o, const LoadFacts& f, std::int64_t ram) {
  const auto given = o.ram > 0 ? "--ram allows" : "may be taken";
  if (f.weights > ram)
    return {LoadMode::direct, ram, fmt::format("{} of weights, {} {}", in_words(f.weights), in_words(ram), given)};
  const auto cached = static_cast<double>(f.cached) / static_cast<double>(std::max<std::int64_t>(f.weights, 1));
  if (cached >= kCached) return {LoadMode::mapped, 0, fmt::format("{:.0f} % are in the page cache", 100 * cached)};
  if (f.weights < kMatters) return {LoadMode::mapped, 0, "they are few"};
  const auto r = f.measure();
  const auto rates = r.direct > 0 ? fmt::format("cold reads: {}/s past the page cache, {}/s through it",
                                                format_bytes(r.direct), format_bytes(r.mapped))
                                  : "no O_DIRECT here";
  if (r.direct > kFaster * r.mapped) return {LoadMode::resident, ram, rates};
  return {LoadMode::mapped, 0, rates};
}

}  // namespace

std::int64_t share_for_weights(std::int64_t available) { return available / 5 * 4; }

LoadChoice choose_load(const io::LoadOptions& o, const LoadFacts& f) {
  const auto ram = o.ram > 0 ? o.ram : share_for_weights(f.available);
  switch (o.mode) {
    case LoadMode::automatic: return chosen(o, f, ram);
    case LoadMode::mapped:
      if (o.ram > 0)
        fail_usage("model", "--ram limits the memory of weights that are read: give --load auto or direct, not mapped");
      return {};
    case LoadMode::direct: return {LoadMode::direct, ram, ""};
    case LoadMode::resident:
      require(f.weights <= ram, "model", "--load resident: the weights take {}, and {} {}: give --load direct",
              in_words(f.weights), in_words(ram), o.ram > 0 ? "are allowed by --ram" : "may be taken");
      return {LoadMode::resident, ram, ""};
  }
  fail("model", "there is no mode {} of loading", static_cast<int>(o.mode));
}

std::int64_t free_memory() {
  const auto total = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return available_memory({}, 1, cgroup_memory("", total)).bytes;
}

LoadFacts load_facts(const std::vector<const io::MappedFile*>& files) {
  LoadFacts facts{.available = free_memory(), .measure = [files] {
                    return files.empty() ? LoadFacts::Rates()
                                         : measured(**std::ranges::max_element(files, {}, &io::MappedFile::size));
                  }};
  for (const auto* file : files) facts.weights += file->size(), facts.cached += file->resident_bytes();
  return facts;
}

}  // namespace hpcdl::models
