#include "hpcdl/io/jinja/run.h"

#include <stdexcept>

#include "hpcdl/core/error.h"

namespace hpcdl::io::jinja {

void Frame::set(std::string_view name, Value value) {
  for (auto& [key, held] : variables)
    if (key == name) return void(held = std::move(value));
  variables.emplace_back(name, std::move(value));
}

const Value* Frame::find(std::string_view name) const {
  for (const Frame* f = this; f; f = f->outer)
    for (const auto& [key, value] : f->variables)
      if (key == name) return &value;
  return nullptr;
}

void Run::fail(std::string_view what) const { hpcdl::fail("io", "{}, line {}: {}", name_, line, what); }

void Run::too_much(std::string_view what) { fail("the template {}; is there a loop that grows without end?", what); }

void Run::too_deep() { fail("the template is nested or calls itself too deeply"); }

Value Run::text(std::string text, bool safe) {
  bytes(text.size());
  return text_value(std::move(text), safe);
}

Value Run::list(std::vector<Value> items, Form form) {
  steps(4 + 4 * static_cast<std::int64_t>(items.size()));
  try {
    return list_value(std::move(items), form);
  } catch (const std::length_error&) {
    fail("lists are nested more than {} deep", kMaxNesting);
  }
}

Value Run::dict(std::vector<std::pair<Value, Value>> items) {
  steps(4 + 8 * static_cast<std::int64_t>(items.size()));
  try {
    return dict_value(std::move(items));
  } catch (const std::length_error&) {
    fail("dicts are nested more than {} deep", kMaxNesting);
  }
}

Frame& Run::new_frame(Frame* outer) {
  steps(4);
  Frame* made = nullptr;
  if (free_.empty()) {
    made = &frames_.emplace_back();
  } else {
    made = free_.back();
    free_.pop_back();
  }
  made->outer = outer;
  return *made;
}

void Run::release(Frame& used, std::int64_t macros_before) {
  if (macros != macros_before) {
    left_.steps -= 50;  // for the memory
    return;
  }
  used.variables.clear();
  free_.push_back(&used);
}

}  // namespace hpcdl::io::jinja
