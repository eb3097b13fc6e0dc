#include "hpcdl/state/file_part.h"

#include <cstdint>

namespace hpcdl {

Part file_part(const nn::Param& p, Interval range) {
  const Shape& c = p.channels_last;
  if (c.rank() != 4) return Part::flat(p.whole(), range, p.part);
  const Part memory = Part::flat(c, range);
  const auto& s = memory.strides;
  Part files{p.file_shape(), memory.local, {s[0], s[3], s[1], s[2]}, {}};
  const bool joined = files.whole.rank() == 2;  // (N, C * H * W)
  if (joined) files.strides = {s[0], s[2]};
  for (const Box& box : memory.boxes) {
    const auto &b = box.begin, &e = box.extent;
    if (!joined) files.boxes.push_back({{b[0], b[3], b[1], b[2]}, {e[0], e[3], e[1], e[2]}, box.at});
    // A box with a part of a row of pixels has one row: its pixels follow each other in files, too.
    for (std::int64_t channel = 0; joined && channel < e[3]; ++channel)
      files.boxes.push_back(
          {{b[0], ((b[3] + channel) * c[1] + b[1]) * c[2] + b[2]}, {e[0], e[1] * e[2]}, box.at + channel});
  }
  return files;
}

}  // namespace hpcdl
