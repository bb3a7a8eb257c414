package shop;

import io.keylatch.client.Keylatch;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

@SpringBootApplication
public class Shop {
    @Bean
    Keylatch keylatch() {
        return Keylatch.create();
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }
}
