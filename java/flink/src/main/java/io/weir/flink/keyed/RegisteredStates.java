package io.weir.flink.keyed;

import io.weir.flink.errors.StateIdCollisionException;

import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The states of one backend by name, in the order in which they became known; no two share an id.
 */
public final class RegisteredStates {

    private final Map<String, RegisteredState<?, ?>> byName = new LinkedHashMap<>();
    private final Map<Integer, String> names = new HashMap<>();

    public RegisteredState<?, ?> get(String name) {
        return byName.get(name);
    }

    public Collection<RegisteredState<?, ?>> all() {
        return Collections.unmodifiableCollection(byName.values());
    }

    /**
     * Adds a state, or replaces the one of its name.
     *
     * @throws StateIdCollisionException if a state of another name has the same id
     */
    public void put(RegisteredState<?, ?> state) throws StateIdCollisionException {
        String holder = names.putIfAbsent(state.id(), state.name());
        if (holder != null && !holder.equals(state.name())) {
            throw new StateIdCollisionException(holder, state.name(), state.id());
        }
        byName.put(state.name(), state);
    }
}
