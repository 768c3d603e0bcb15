package io.weir.flink.errors;

import org.apache.flink.util.StateMigrationException;

/** Two state names of one operator hash to the same state id. */
public class StateIdCollisionException extends StateMigrationException {

    private static final long serialVersionUID = 1L;

    /**
     * @param first the name that holds the id
     * @param second the name that cannot be registered beside it
     * @param id the id that both share
     */
    public StateIdCollisionException(String first, String second, int id) {
        super(
                String.format(
                        "States '%s' and '%s' of one operator share the state id 0x%08x; rename one"
                                + " of them.",
                        first, second, id));
    }
}
