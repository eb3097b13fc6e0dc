#include "hpcdl/train/run_ways.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "hpcdl/core/device_model.h"
#include "hpcdl/core/error.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::train {

namespace {

const WayKey kCpu{"cpu", {}};

std::map<WayKey, WayNote> choose(TrainStep& step, const WayNames& names) {
  step.set_ways(std::make_shared<const Ways>(names));
  auto notes = step.choose_ways();
  if (!step.on_gpu()) notes[kCpu] = {.used = std::string(simd::isa_name(simd::active_isa())), .call = "every op"};
  return notes;
}

/// The first few of a list, in words.
std::string some_of(const std::vector<std::string>& list) {
  constexpr std::size_t kShown = 3;
  const auto shown =
      std::vector(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(std::min(list.size(), kShown)));
  return fmt::format("{}{}", fmt::join(shown, "; "),
                     list.size() > kShown ? fmt::format("; and {} more", list.size() - kShown) : "");
}

/// What was computed in another way before, and why it is not now.
void say_what_changed(const io::UsedWays& before, const std::string& device, const std::map<WayKey, WayNote>& notes,
                      const std::function<void(std::string_view)>& say) {
  std::vector<std::string> changed;
  for (const auto& c : before.calls) {
    const auto it = notes.find(c.key);
    if (it == notes.end() || it->second.used == c.way) continue;
    const auto& now = it->second;
    changed.push_back(fmt::format("{} in the way \"{}\", now \"{}\"{}", c.call, c.way, now.used,
                                  now.refused == c.way ? ", because the first is not available here"
                                  : now.told           ? ", because train.ways says so"
                                                       : ""));
  }
  const bool moved = before.device != device;
  if (changed.empty() && !moved) return;
  auto text = moved ? fmt::format("the checkpoint was written on {}, and this is {}", before.device, device)
                    : std::string("some calls are computed in other ways than before this checkpoint");
  if (!changed.empty()) text += fmt::format(": before, {}", some_of(changed));
  say(fmt::format("warning: {}; so the last bits of results can differ from those of a run that did not stop", text));
  if (!moved && notes.contains(kCpu) && !changed.empty())
    for (const auto kind : simd::kIsaKinds)
      if (kind <= simd::best_isa() && simd::isa_name(kind) == before.calls.front().way)
        say(fmt::format("HPCDL_ISA={} computes as before", simd::isa_name(kind)));
}

}  // namespace

std::optional<io::UsedWays> set_ways(TrainStep& step, const WaySources& sources,
                                     const std::function<void(std::string_view)>& say) try {
  WayNames names{.calls = {}, .preferred = parse_preferred_ways(sources.preferred, "train.ways")};
  if (sources.tuned) names.calls = sources.tuned->names().calls;
  if (sources.before)
    for (const auto& c : sources.before->calls) {
      names.calls.erase(c.key);  // it was the built-in choice, and there may be more to that than one name says
      if (c.told) names.calls[c.key] = c.way;
    }
  auto notes = choose(step, names);
  if (sources.before) {
    const auto told = names.calls.size();
    for (const auto& c : sources.before->calls)
      if (const auto it = notes.find(c.key); it != notes.end() && it->second.used != c.way)
        names.calls.emplace(c.key, c.way);  // the built-in choice is another one now
    if (names.calls.size() > told) notes = choose(step, names);
  }
  io::UsedWays now{.device = device_model(step.stream().device()), .calls = {}};
  std::vector<std::string> refused;
  for (const auto& [key, note] : notes) {
    now.calls.push_back({key, note.used, note.call, note.told});
    if (!note.refused.empty() && !sources.before)
      refused.push_back(fmt::format("{} in the way \"{}\", so \"{}\" does", note.call, note.refused, note.used));
  }
  if (!refused.empty()) say(fmt::format("this GPU cannot compute {}", some_of(refused)));
  if (sources.before) say_what_changed(*sources.before, now.device, notes, say);
  return now;
} catch (const UsageError&) {
  throw;
} catch (const Error& e) {
  say(fmt::format("warning: it is not known in which ways this run computes, so its checkpoints do not say: {}",
                  e.what()));
  return std::nullopt;
}

}  // namespace hpcdl::train
