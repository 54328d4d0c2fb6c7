// Which units of a clocked state update at a step, and whose contributions are kept together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace linmem {

// Units [first, last) with one clock. They hear the units [from, to); their weights, row by row, begin at `weights` in
// the packed vector.
struct Module {
  int first, last, from, to;
  int64_t period, weights;
  int group;  // whose sum of contributions they read
};

// Neighbouring modules whose contribution to others is computed together: when one of them fires, that of the group
// and those of all groups in front of it. `reach` is the first unit behind those that the group contributes to.
struct Group {
  int first, last, reach;
};

// What happens at a step: modules before `modules` may fire, which are the units before `units`; all modules behind
// keep their state. `groups` have to contribute anew afterwards.
struct Firing {
  int modules, units, groups;
};

class Layout {
 public:
  // `table` has for each module its size, its period, the first unit it hears, one behind the last, and its group.
  Layout(const int64_t* table, int64_t count) {
    int first = 0, max_period = 0;
    int64_t weights = 0;
    for (int64_t k = 0; k < count; k++, table += 5) {
      const int size = int(table[0]), from = int(table[2]), to = int(table[3]), group = int(table[4]);
      modules.push_back({first, first + size, from, to, table[1], weights, 0});
      if (group == int(groups.size())) groups.push_back({first, first, 0});
      groups[group].last = first += size;
      weights += int64_t(size) * (to - from);
      nested_ = nested_ && (max_period == 0 || table[1] % max_period == 0);
      max_period = int(std::max<int64_t>(max_period, table[1]));
    }
    for (Group& g : groups)
      for (const Module& m : modules)
        if (m.from < g.last && g.first < m.to) g.reach = m.last;
    for (std::size_t i = 1; i < groups.size(); i++) groups[i].reach = std::max(groups[i].reach, groups[i - 1].reach);
    for (Module& m : modules)
      while (groups[m.group].reach < m.last) m.group++;
    width = first;
    packed_size = weights;
  }

  bool fires(const Module& m, int64_t clock) const { return m.period == 1 || clock % m.period == 0; }

  Firing at(int64_t clock) const {
    int last = 0;
    for (int k = 0; k < int(modules.size()); k++) {
      if (fires(modules[k], clock))
        last = k + 1;
      else if (nested_)
        break;
    }
    if (last == 0) return {0, 0, 0};
    const int units = modules[last - 1].last;
    int touched = 0;
    while (groups[touched].last < units) touched++;
    return {last, units, touched + 1};
  }

  // Call keep(first, last) for runs of units that do not update at a step.
  template <class Keep> void for_held(const Firing& firing, int64_t clock, Keep keep) const {
    if (!nested_)
      for (int k = 0; k < firing.modules; k++)
        if (!fires(modules[k], clock)) keep(modules[k].first, modules[k].last);
    if (firing.units < width) keep(firing.units, width);
  }

  std::vector<Module> modules;
  std::vector<Group> groups;
  int width;
  int64_t packed_size;

 private:
  bool nested_ = true;  // whether every period divides the next, so that those that fire are the first ones
};

}  // namespace linmem
