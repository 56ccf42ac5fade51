#include "router/prefix_directory.h"

#include <algorithm>

namespace baton::router {

void PrefixDirectory::Add(uint32_t slot, uint64_t name) {
  if (num_names_ >= options_.max_names || !told_[slot].names.insert(name).second) return;
  holders_[name].push_back(slot);
  ++num_names_;
}

void PrefixDirectory::Remove(uint32_t slot, uint64_t name) {
  if (told_[slot].names.erase(name) == 0) return;
  --num_names_;
  const auto it = holders_.find(name);
  auto& slots = it->second;
  const auto mine = std::find(slots.begin(), slots.end(), slot);
  *mine = slots.back();
  slots.pop_back();
  if (slots.empty()) holders_.erase(it);
}

uint64_t PrefixDirectory::Apply(uint32_t slot, const v1::PrefixReport& report) {
  if (slot >= told_.size()) told_.resize(slot + 1);
  told_[slot].silent = report.version() == 0;
  if (told_[slot].silent) return told_[slot].version;
  if (report.base_version() == 0) {
    Clear(slot);
  } else if (report.base_version() != told_[slot].version) {
    return told_[slot].version = 0;
  }
  for (const uint64_t name : report.removed()) Remove(slot, name);
  for (const uint64_t name : report.added()) Add(slot, name);
  return told_[slot].version = report.version();
}

void PrefixDirectory::Clear(uint32_t slot) {
  if (slot >= told_.size()) return;
  const absl::flat_hash_set<uint64_t> names = told_[slot].names;
  for (const uint64_t name : names) Remove(slot, name);
  told_[slot].version = 0;
  // Expectations of a former holder of this slot end by themselves; they are hints only.
}

void PrefixDirectory::Expect(uint32_t slot, std::span<const uint64_t> names, absl::Time now) {
  while (!expiry_.empty() && (expiry_.front().first <= now || expiry_.size() > options_.max_expected)) {
    const auto it = expected_.find(expiry_.front().second);
    if (it != expected_.end() && it->second.until <= expiry_.front().first) expected_.erase(it);
    expiry_.pop_front();
  }
  if (slot < told_.size() && told_[slot].silent) return;
  const absl::Time until = now + options_.expect_for;
  for (const uint64_t name : names) {
    if (expiry_.size() >= options_.max_expected) return;
    expected_[name] = {slot, until};
    expiry_.emplace_back(until, name);
  }
}

void PrefixDirectory::Match(std::span<const uint64_t> names, absl::Time now, std::vector<uint16_t>* depth) const {
  depth->assign(told_.size(), 0);
  const size_t count = std::min<size_t>(names.size(), UINT16_MAX);
  for (size_t i = 0; i < count; ++i) {
    bool any = false;
    const auto hold = [&](uint32_t slot) {
      if (slot >= depth->size()) depth->resize(slot + 1);
      if ((*depth)[slot] != i) return;
      (*depth)[slot] = static_cast<uint16_t>(i + 1);
      any = true;
    };
    if (const auto it = holders_.find(names[i]); it != holders_.end()) {
      for (const uint32_t slot : it->second) hold(slot);
    }
    if (const auto it = expected_.find(names[i]); it != expected_.end() && it->second.until > now) {
      hold(it->second.slot);
    }
    if (!any) return;
  }
}

}  // namespace baton::router
